"""What the drawings in docs/pictures have in common: colours for light and dark surroundings, a title, a page below."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

STYLE = """\
    :root {
      --page: #fff; --ink: #1c2230; --dim: #59616f; --line: #98a1b0; --box: #f3f5f9; --inner: #fff;
      --lit: #1a5fcf; --lit-box: #dbe8fd; --bad: #b0302a; --bad-box: #fbe5e3;
    }
    @media (prefers-color-scheme: dark) {
      :root {
        --page: #1e2129; --ink: #e7eaf0; --dim: #a7b0bf; --line: #667084; --box: #282c37; --inner: #343946;
        --lit: #86b4ff; --lit-box: #25406f; --bad: #ff978c; --bad-box: #4d2826;
      }
    }
    text { fill: var(--ink); font: 13px system-ui, "DejaVu Sans", sans-serif; }
    .name { font-weight: 600; }
    .dim { fill: var(--dim); font-size: 12px; }
    .code { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; }
    .mid { text-anchor: middle; }
    .page { fill: var(--page); }
    .wire { fill: none; stroke: var(--line); stroke-width: 1.5; }
    .lit-wire { fill: none; stroke: var(--lit); stroke-width: 2; }
"""


def picture(width: int, height: int, title: str, description: str, content: Iterable[str], style: str = "") -> str:
    """An SVG document of that size in pixels; `content` is its elements, `style` goes behind the common one."""
    body = "\n".join(f"  {line}" for line in content)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
aria-labelledby="title desc">
  <title id="title">{escape(title)}</title>
  <desc id="desc">{escape(description)}</desc>
  <style>
{STYLE}{style}  </style>
  <rect class="page" width="{width}" height="{height}" rx="8"/>
{body}
</svg>
"""
