"""The compatibility matrix as one HTML page that needs nothing else."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from dlbridge import registry
from dlbridge.check.compatibility import WAY_TEXTS, Matrix
from dlbridge.check.exchanges import DTYPES, FLAGS, LAYOUTS, OUTCOMES, SIZES, WAYS, Case
from dlbridge.text import escape_controls

# Distinguishable without red and green; from good to bad, and grey for what is no judgement. Of
# each the colour on a light page and on a dark one.
COLOURS = {
    "shared": ("#1f77b4", "#3b8fd0"),
    "copied": ("#9ecae9", "#a9cfea"),
    "refused": ("#d3d7dc", "#4a525c"),
    "wrong": ("#f5a623", "#f5a623"),
    "crashed": ("#b3191f", "#e5484d"),
    "absent": ("#ffffff", "#0d1117"),
}
MEANINGS = {
    "shared": "arrived, in the same memory",
    "copied": "arrived, in memory of its own",
    "refused": "an error instead of a tensor",
    "wrong": "other values, or memory that must not be shared or written",
    "crashed": "the process ended, or hung",
    "absent": "the producer makes no such tensor",
}


def render(found: Matrix) -> str:
    """Return the page: a map of all pairs in both ways, what is wrong, and each pair in detail."""
    return _PAGE.format(
        style=_paint() + _STYLE,
        summary=_summarise(found),
        legend=_draw_legend(),
        maps="".join(_draw_map(found, way) for way in WAYS),
        findings=_draw_findings(found),
        data=json.dumps(_collect(found)).replace("<", "\\u003c"),
        script=_SCRIPT,
    )


def _paint() -> str:
    """Return the colours of light and dark pages as CSS variables, and a class per outcome."""
    light, dark = (
        "".join(f"--{name}:{colours[i]};" for name, colours in COLOURS.items()) for i in (0, 1)
    )
    classes = "".join(f".{name}{{background:var(--{name})}}" for name in COLOURS)
    return (
        f":root{{color-scheme:light dark;{light}{_LIGHT}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}{_DARK}}}}}{classes}"
    )


def _show(text: object) -> str:
    return escape(escape_controls(str(text)))


def _title(name: str) -> str:
    return registry.row(name).title


def _summarise(found: Matrix) -> str:
    made = sum(cell.outcome != "absent" for cell in found.cells)
    names = ", ".join(f"{_title(name)} {number}" for name, number in found.versions.items())
    parts = [f"<p>{made:,} exchanges between {_show(names)}.</p><div class=figures>"]
    for way in WAYS:
        cells = [cell for cell in found.cells if cell.way == way and cell.outcome != "absent"]
        bad = sum(cell.is_bad for cell in cells)
        arrived = sum(cell.outcome in ("shared", "copied") for cell in cells)
        share = f"{arrived / len(cells):.0%}" if cells else "none"
        parts.append(
            f"<div><b>{_show(_WAYS[way])}</b><br><span class=big>{share}</span> arrived<br>"
            f"<span class='big {'alarm' if bad else ''}'>{bad:,}</span> wrong or crashed</div>"
        )
    return "".join([*parts, "</div>"])


_WAYS = {"own": "Frameworks' own functions", "dlbridge": "Through dlbridge"}


def _draw_legend() -> str:
    return "".join(
        f"<span class=key><i class={each}></i><b>{each}</b> {MEANINGS[each]}</span>"
        for each in OUTCOMES
    )


def _draw_map(found: Matrix, way: str) -> str:
    heads = "".join(f"<th class=down>{_show(_title(name))}</th>" for name in found.versions)
    lines = []
    for source in found.versions:
        tiles = "".join(_draw_tile(found, source, target, way) for target in found.versions)
        lines.append(f"<tr><th>{_show(_title(source))}</th>{tiles}</tr>")
    return (
        f"<section><h2>{_show(_WAYS[way])}</h2><table class=map>"
        f"<tr><th class=corner>from ↓ &nbsp; to →</th>{heads}</tr>{''.join(lines)}</table>"
        "</section>"
    )


def _draw_tile(found: Matrix, source: str, target: str, way: str) -> str:
    if source == target:
        return "<td class=none></td>"
    counts = found.count(source, target, way)
    made = sum(counts.values()) - counts["absent"]
    if not made:
        return "<td class=none>none made</td>"
    bars = "".join(
        f"<i class={each} style='width:{100 * counts[each] / made:.2f}%'></i>"
        for each in OUTCOMES[:-1]
        if counts[each]
    )
    bad = counts["wrong"] + counts["crashed"]
    arrived = round(100 * (counts["shared"] + counts["copied"]) / made)
    told = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each])
    mark = f"<em title='wrong or crashed'>{bad}</em>" if bad else ""
    return (
        f"<td class=tile tabindex=0 data-pair='{_show(source)} {_show(target)}' "
        f"title='{_show(_title(source))} to {_show(_title(target))}: {told}'>"
        f"<div class=bar>{bars}</div><span>{arrived}%{mark}</span></td>"
    )


def _draw_findings(found: Matrix) -> str:
    lines = []
    for what, exchange, cells, text in found.findings():
        colour = what.rpartition(" ")[2] if what.rpartition(" ")[2] in COLOURS else "absent"
        lines.append(
            f"<tr><td><i class={colour}></i> {_show(what)}</td><td>{_show(exchange)}</td>"
            f"<td class=number>{cells}</td><td>{_show(text)}</td></tr>"
        )
    if not lines:
        return "<p>Nothing was wrong, and nothing crashed.</p>"
    heads = "".join(f"<th>{each}</th>" for each in ("what", "exchange", "cells", "defect"))
    table = f"<table class=list><tr>{heads}</tr>{''.join(lines)}</table>"
    return f"<div class=findings>{table}</div>"


def _collect(found: Matrix) -> dict[str, Any]:
    """Return the cells as the script reads them: letters of outcomes and numbers of texts."""
    cases = sorted({cell.case for cell in found.cells}, key=_place)
    numbers = {case: index for index, case in enumerate(cases)}
    texts: dict[str, int] = {"": 0}
    pairs: dict[str, Any] = {}
    for cell in found.cells:
        pair = pairs.setdefault(f"{cell.source} {cell.target}", {})
        outcomes, notes = pair.setdefault(cell.way, ([5] * len(cases), [0] * len(cases)))
        text = escape_controls(f"{cell.reason}{f' [known: {cell.known}]' if cell.known else ''}")
        outcomes[numbers[cell.case]] = OUTCOMES.index(cell.outcome)
        notes[numbers[cell.case]] = texts.setdefault(text, len(texts))
    return {
        "outcomes": OUTCOMES,
        "ways": {way: _WAYS[way] for way in WAY_TEXTS},
        "titles": {name: _title(name) for name in found.versions},
        "dtypes": [each for each in DTYPES if any(case.dtype == each for case in cases)],
        "cases": cases,
        "texts": [*texts],
        "pairs": pairs,
        "first": _worst(found),
    }


def _place(case: Case) -> tuple[int, ...]:
    axes = zip((DTYPES, (*LAYOUTS,), (*SIZES,), FLAGS), case, strict=True)
    return tuple(axis.index(value) for axis, value in axes)


def _worst(found: Matrix) -> str:
    """Return the pair that is shown first."""
    bad = [each for each in found.defects if not each.known] or found.defects
    pairs = [(each.source, each.target) for each in bad] or [*found.pairs()]
    return " ".join(pairs[0])


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>dlbridge matrix</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>
<h1>Which tensors arrive?</h1>
{summary}
<div class=legend>{legend}</div>
<p class=hint>Each tile is a pair: its bar shows what came of the exchanges, the figure how many
arrived with the right values, and the number in red how many were wrong or crashed. Choose a tile
to see its tensors.</p>
<div class=maps>{maps}</div>
<h2 id=title></h2>
<p class=hint>One square for each tensor: dtypes from top to bottom, then size, layout and flag.
Point at a square, or tap it, to read what happened.</p>
<p id=note>&nbsp;</p>
<div id=detail></div>
<h2>What was wrong</h2>
{findings}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body></html>
"""

_LIGHT = "--page:#fff;--text:#1f2328;--soft:#57606a;--line:#d0d7de;--stripe:#f6f8fa;--alarm:#b3191f"
_DARK = (
    "--page:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;--stripe:#161b22;--alarm:#ff7b72"
)

_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;color:var(--text);background:var(--page);
margin:24px auto;max-width:1500px;padding:0 20px}
h1{margin:0 0 4px}h2{font-size:17px;margin:22px 0 8px}p{margin:6px 0}
.hint{color:var(--soft);max-width:900px}
.figures{display:flex;flex-wrap:wrap;gap:10px 16px;margin:12px 0}
.figures div{border:1px solid var(--line);border-radius:8px;padding:10px 18px;min-width:200px}
.big{font-size:26px;font-weight:700}.alarm{color:var(--alarm)}
.legend{display:flex;flex-wrap:wrap;gap:6px 20px;margin:12px 0}
.key i,.list i{display:inline-block;width:13px;height:13px;margin-right:6px;vertical-align:-2px;
border:1px solid #8c959f55;border-radius:2px}
.maps{display:flex;flex-wrap:wrap;gap:10px 36px}
.maps section,#detail section{max-width:100%;overflow-x:auto}
table{border-collapse:separate;border-spacing:3px}
.map th{font-weight:600;text-align:right;padding-right:6px;white-space:nowrap}
.map tr>:first-child,.grid tr>:first-child{position:sticky;left:0;background:var(--page)}
.map th.down{text-align:center;padding:0;font-size:12px;white-space:normal;max-width:78px}
.map th.corner{font-weight:400;color:var(--soft);font-size:12px}
.map td{width:78px;min-width:78px;height:46px;border-radius:6px;text-align:center;padding:0}
.none{background:var(--stripe);color:var(--soft);font-size:11px}
.tile{border:1px solid var(--line);cursor:pointer;overflow:hidden;vertical-align:top}
.tile:hover,.tile.chosen,.tile:focus{outline:2px solid var(--text)}
.bar{display:flex;height:22px}.bar i{display:block;height:100%}
.tile span{font-size:13px;line-height:23px}
.tile em{font-style:normal;font-weight:700;color:#fff;background:#b3191f;border-radius:8px;
padding:0 6px;margin-left:6px;font-size:12px}
.findings{overflow-x:auto}
.list td,.list th{text-align:left;padding:3px 10px;vertical-align:top;overflow-wrap:break-word}
.list td{min-width:60px}
.list tr:nth-child(even){background:var(--stripe)}.list .number{text-align:right}
#note{min-height:22px;font-family:ui-monospace,monospace;font-size:13px;overflow-wrap:anywhere;
position:sticky;top:0;background:var(--page);padding:4px 0;z-index:1}
#detail{display:flex;flex-wrap:wrap;gap:10px 36px}
.grid{border-spacing:1px}.grid th{font-weight:400;font-size:11px;text-align:right;
padding:0 4px;white-space:nowrap}
.grid th.top{vertical-align:bottom;padding:4px 0 0}
.grid th.size{text-align:left;font-weight:600}
.grid th.top span{writing-mode:vertical-rl;transform:rotate(180deg)}
.grid td{width:15px;min-width:15px;height:15px;padding:0;border-radius:2px}
.grid td.absent{box-shadow:inset 0 0 0 1px var(--line)}
.grid .first{border-left:4px solid var(--page)}
@media(max-width:600px){
body{padding:0 12px;margin:14px auto}
.figures div{flex:1;min-width:130px;padding:8px 12px}
.map th,.map th.down{font-size:11px;white-space:normal}
.map tr>:first-child{min-width:70px}
.map td{width:52px;min-width:52px}
.tile span{display:flex;flex-direction:column;font-size:11px;line-height:14px}
.tile em{font-size:10px;margin:0 auto}
.list td,.list th{padding:3px 4px;font-size:12px}
}
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const note = document.getElementById("note");
const columns = [...new Set(data.cases.map(c => c.slice(1).join(", ")))];
const sizeOf = c => c.split(", ")[1];
const widthOf = size => columns.filter(c => sizeOf(c) === size).length;
const isWide = size => widthOf(size) > 5;  // then it has a heading of its own
function labelOf(column) {
  const [layout, size, flag] = column.split(", ");
  const parts = [layout];
  if (size !== "24 elements" && !isWide(size)) parts.push(size);
  if (flag !== "plain") parts.push(flag);
  return parts.join(", ");
}
columns.sort((a, b) => {
  const sizes = [...new Set(data.cases.map(c => c[2]))];
  return sizes.indexOf(sizeOf(a)) - sizes.indexOf(sizeOf(b));
});
const places = new Map(data.cases.map((c, index) => [c.join(", "), index]));
function draw(pair) {
  const [source, target] = pair.split(" ");
  document.getElementById("title").textContent =
    data.titles[source] + " \\u2192 " + data.titles[target];
  document.querySelectorAll(".tile").forEach(tile =>
    tile.classList.toggle("chosen", tile.dataset.pair === pair));
  const detail = document.getElementById("detail");
  detail.replaceChildren();
  note.textContent = "\\u00a0";
  for (const way of Object.keys(data.ways)) {
    const [outcomes, notes] = data.pairs[pair][way];
    const section = document.createElement("section");
    const heading = document.createElement("b");
    heading.textContent = data.ways[way];
    const table = document.createElement("table");
    table.className = "grid";
    const sizes = table.insertRow();
    sizes.appendChild(document.createElement("th"));
    columns.forEach((column, index) => {
      const size = sizeOf(column);
      if (index && size === sizeOf(columns[index - 1])) return;
      const head = document.createElement("th");
      head.className = "size" + starts(index);
      head.colSpan = widthOf(size);
      head.textContent = isWide(size) ? size : "";
      sizes.appendChild(head);
    });
    const top = table.insertRow();
    top.appendChild(document.createElement("th"));
    columns.forEach((column, index) => {
      const head = document.createElement("th");
      head.className = "top" + starts(index);
      head.innerHTML = "<span></span>";
      head.firstChild.textContent = labelOf(column);
      top.appendChild(head);
    });
    for (const dtype of data.dtypes) {
      const row = table.insertRow();
      const head = document.createElement("th");
      head.textContent = dtype;
      row.appendChild(head);
      columns.forEach((column, index) => {
        const cell = row.insertCell();
        const place = places.get(dtype + ", " + column);
        if (place === undefined) { cell.className = starts(index); return; }
        const outcome = data.outcomes[outcomes[place]];
        cell.className = outcome + starts(index);
        const text = dtype + ", " + column + ": " + outcome +
          (notes[place] ? " \\u2013 " + data.texts[notes[place]] : "");
        cell.title = text;
        cell.onmouseenter = cell.onclick = () => { note.textContent = text; };
      });
    }
    section.append(heading, table);
    detail.appendChild(section);
  }
}
function starts(index) {
  return index && sizeOf(columns[index]) !== sizeOf(columns[index - 1]) ? " first" : "";
}
document.querySelectorAll(".tile").forEach(tile => {
  tile.onclick = () => draw(tile.dataset.pair);
  tile.onkeydown = event => { if (event.key === "Enter") draw(tile.dataset.pair); };
});
if (data.pairs[data.first]) draw(data.first);
"""
