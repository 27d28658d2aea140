"""mkdocs runs this: pictures of README.md are found, and the built site must not fetch anything from elsewhere."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

# What a browser loads by itself; a link to another site (<a href>) is only followed by people.
_LOADED = re.compile(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
_LOADED_BY_STYLE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


def on_page_content(html: str, page, **_) -> str:
    """README.md, of which the home page has a part, stands one folder above the pages."""
    return html.replace('src="docs/pictures/', 'src="pictures/') if page.file.src_uri == "index.md" else html


def on_post_build(config) -> None:
    found = set()
    for file in Path(config["site_dir"]).rglob("*"):
        if file.suffix == ".html":
            found |= {(file.name, url) for url in _LOADED.findall(file.read_text()) if "rel=canonical" not in url}
        if file.suffix in (".html", ".css"):
            found |= {(file.name, url) for url in _LOADED_BY_STYLE.findall(file.read_text())}
    if found:
        raise PluginError(f"the site would fetch from elsewhere: {sorted(found)}")
