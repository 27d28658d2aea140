// The search of the site runs in a worker, which browsers forbid to pages that are opened from a folder (file://). There
// its script runs in a frame of its own instead, with the part of a worker's interface that it uses.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.onload = () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => {
          this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
          this.waiting.forEach((data) => this.postMessage(data));
        };
        inside.document.body.append(script);
      };
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
