"""A web crawler: workers take addresses from a queue, fetch pages, and report through a port.

The site that it crawls is a small one of its own, served by the script on this machine: nothing is fetched from
elsewhere. Who fetches which page is a matter of luck; what is found is not.

    python examples/crawler.py
"""

import asyncio
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from monarch.actor import Actor, Channel, Port, concurrent_endpoint, endpoint, this_host

WORKERS = 3
SITE = {  # path: (title, links)
    "/": ("Home", ["/animals", "/plants", "/about"]),
    "/about": ("About", ["/", "mailto:nobody@localhost"]),
    "/animals": ("Animals", ["/", "/animals/cat", "/animals/dog", "/animals/unicorn"]),
    "/animals/cat": ("Cat", ["/animals", "dog"]),
    "/animals/dog": ("Dog", ["/animals", "cat", "/plants/tree"]),
    "/plants": ("Plants", ["/", "/plants/tree", "/plants/rose"]),
    "/plants/rose": ("Rose", ["/plants"]),
    "/plants/tree": ("Tree", ["/plants", "/animals/cat"]),
}


class Page(NamedTuple):
    url: str
    status: int
    title: str
    links: list[str]


class Frontier(Actor):
    """The queue: addresses that nobody has fetched yet. Gives out each one once, and knows when all work is done."""

    def __init__(self, start: str):
        self.known = {start}
        self.waiting = [start]
        self.in_work = 0
        self.changed = asyncio.Condition()

    @concurrent_endpoint
    async def next(self) -> str | None:
        """An address, or None when there will be no more. Waits meanwhile; other calls go on (so: concurrent)."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.waiting or not self.in_work)
            if not self.waiting:
                return None
            self.in_work += 1
            return self.waiting.pop(0)

    @concurrent_endpoint
    async def done(self, links: list[str]) -> None:
        """A worker has finished a page, on which it found these."""
        async with self.changed:
            self.waiting += [link for link in dict.fromkeys(links) if link not in self.known]
            self.known.update(links)
            self.in_work -= 1
            self.changed.notify_all()


class Worker(Actor):
    """Fetches pages until there are no more. It may block: an actor has a thread (here, a process) of its own."""

    @endpoint
    def crawl(self, frontier: Frontier, pages: Port[Page | None]) -> None:
        try:
            while (url := frontier.next.call_one().get()) is not None:
                page = fetch(url)
                pages.send(page)  # to the script, at once; not through the queue
                frontier.done.broadcast(page.links)
        finally:
            pages.send(None)  # comes after all the pages: the messages of one sender arrive in order


def fetch(url: str) -> Page:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as response:
            text = response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return Page(url, error.code, "", [])
    title = re.search("<title>(.*)</title>", text)[1]
    links = [urllib.parse.urljoin(url, link) for link in re.findall('href="(.*?)"', text)]
    here = urllib.parse.urlsplit(url).netloc  # other sites are not our business
    return Page(url, 200, title, [link for link in links if urllib.parse.urlsplit(link).netloc == here])


class Site(BaseHTTPRequestHandler):
    requests: list[str] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        title, links = SITE.get(self.path, ("Not found", []))
        body = f"<title>{title}</title>" + "".join(f'<a href="{link}">{link}</a>' for link in links)
        self.send_response(200 if self.path in SITE else 404)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"

    frontier = this_host().spawn_procs().spawn("frontier", Frontier, f"{root}/")
    workers = this_host().spawn_procs(per_host={"workers": WORKERS}).spawn("workers", Worker)
    port, receiver = Channel[Page | None].open()
    crawled = workers.crawl.call(frontier, port)  # a future; meanwhile we take what comes in
    pages: list[Page] = []
    working = WORKERS
    while working:
        page = receiver.recv().get()
        if page is None:
            working -= 1
        else:
            pages.append(page)
    crawled.get()  # raises, if a worker has

    for page in sorted(pages):
        print(f"{page.status}  {page.url.removeprefix(root):16} {page.title:8} {len(page.links)} links")
    assert sorted(Site.requests) == sorted(page.url.removeprefix(root) for page in pages), "each page exactly once"
    server.shutdown()


if __name__ == "__main__":
    main()
