"""mkdocs runs this: the built site must have the pictures that it shows, and must not fetch anything from elsewhere."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

# What a browser loads by itself; a link to another site (<a href>) is only followed by people.
_LOADED = re.compile(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
_PICTURE = re.compile(r"<img[^>]*? src=[\"']?((?!\w+:)[^\"' >]+)")
_LOADED_BY_STYLE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


def on_page_content(html: str, page, **_) -> str:
    """README.md, of which the home page has a part, stands one folder above the pages."""
    return html.replace('src="docs/pictures/', 'src="pictures/') if page.file.src_uri == "index.md" else html


def on_post_build(config) -> None:
    pages = {file: file.read_text() for file in Path(config["site_dir"]).rglob("*.html")}
    sheets = {file: file.read_text() for file in Path(config["site_dir"]).rglob("*.css")}
    elsewhere = {(file.name, url) for file, text in pages.items() for url in _LOADED.findall(text)}
    elsewhere |= {(file.name, url) for file, text in (pages | sheets).items() for url in _LOADED_BY_STYLE.findall(text)}
    if elsewhere:
        raise PluginError(f"the site would fetch from elsewhere: {sorted(elsewhere)}")
    shown = {(file, picture) for file, text in pages.items() for picture in _PICTURE.findall(text)}
    if missing := sorted((file.name, picture) for file, picture in shown if not (file.parent / picture).exists()):
        raise PluginError(f"pictures that are not there: {missing}")
