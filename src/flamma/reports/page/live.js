"use strict";
// The live page: told by server-sent events that there is something new, it fetches and shows it.
const Live = (() => {
  const say = (text) => {
    const place = document.getElementById("live");
    if (place) place.textContent = text;
  };
  let busy = false;
  let waiting = null;
  let heard = Date.now(); // when something was new

  // Of a run that is not finished: nothing new for much longer than a round takes is worth a word.
  function watch() {
    const place = document.querySelector("#progress progress");
    const silent = (Date.now() - heard) / 1000;
    const usual = Number(document.getElementById("progress")?.dataset.pace) || 0;
    if (place && document.getElementById("live").textContent.startsWith("●")) {
      say(silent > Math.max(60, 10 * usual) ? `● live, nothing new for ${duration(silent)}` : "● live");
    }
  }

  async function renew(version) {
    waiting = version;
    if (busy) return;
    busy = true;
    try {
      while (waiting !== null) {
        const wanted = waiting;
        waiting = null;
        const answer = await fetch("document.json", { cache: "no-store" });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        await Page.render(await answer.json());
        document.documentElement.dataset.version = wanted;
        heard = Date.now();
        say("● live");
      }
    } catch {
      say("○ no connection");
    } finally {
      busy = false;
    }
  }

  function start() {
    const events = new EventSource("events");
    events.addEventListener("version", (event) => renew(event.data));
    events.addEventListener("open", () => say("● live"));
    events.addEventListener("error", () => say("○ waiting for the server"));
    setInterval(watch, 5000);
  }

  return { start };
})();

Page.start().then(() => {
  if (document.documentElement.dataset.live === "yes") Live.start();
});
