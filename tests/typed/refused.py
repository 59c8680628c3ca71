"""Mistakes of a user's program: type checkers refuse each line that says so, and no other."""

import torch

import dlbridge
import dlbridge.graph as tf


def policies(x: torch.Tensor) -> None:
    dlbridge.to_torch(x, copy="never")  # refused
    dlbridge.to_torch(x, readonly="shared")  # refused
    dlbridge.to_jax(x, grad="keep")  # refused
    dlbridge.to_numpy(x, immutable="refuse")  # refused
    dlbridge.to_numpy(x, layout="C")  # refused
    dlbridge.to_jax(x, narrow=True)  # refused
    dlbridge.to_torch(x, read_only="share")  # refused
    dlbridge.convert(x, "torch", readonly="shared")  # refused
    dlbridge.convert(x, to="jax", read_only="share")  # refused
    dlbridge.convert(x, torch, grad="keep")  # refused
    dlbridge.explain(x, "torch", read_only="share")  # refused
    dlbridge.explain(x, to="torch", narrow="yes")  # refused
    dlbridge.convert_tree({"a": x}, "torch", read_only="share")  # refused
    dlbridge.convert_tree({"a": x}, to="torch", unknown="drop")  # refused
    dlbridge.convert_tree({"a": x}, to="torch", unknown="keep", readonly="copy")
    dlbridge.explain(x, to="torch", readonly="share", narrow="checked")


def kernels(source: str, schema: str) -> None:
    dlbridge.wrap(len, schema, abi="python:numpy", batch="parallel")  # refused
    dlbridge.compile_c(source, "f", schema, vpj=len)  # refused
    dlbridge.compile_c(source, "f", schema, vjp=len)
    dlbridge.load_library("f.so").wrap("f", overlap="never")  # refused


def names(x: torch.Tensor) -> None:
    dlbridge.to_pytorch(x)  # refused
    dlbridge.zeros((2, 3), dtyp="float32")  # refused
    dlbridge.zeros(2, "float32")
    tf.reduce_meen(x)  # refused
