"""Values and graphs on the wire: TensorProto, AttrValue and GraphDef as TensorFlow writes them."""
