// The studio: three steps, one state that the server owns and this page asks for every second.

import { announce, bar, fill, get, h, percent, t } from "./dom.js";
import { labelStep } from "./label.js";
import { setupStep } from "./setup.js";
import { resultStep } from "./result.js";

export const me = crypto.randomUUID?.() ?? String(Math.random()); // this window, for undo
export const shared = { state: null, images: null, facts: null };

export const classNames = () => shared.state.classes.map((info) => info.name);

export async function openStudio(facts, top, main) {
  shared.facts = facts;
  document.title = "ogkd studio";
  const steps = { setup: setupStep(refresh), label: labelStep(refresh), result: resultStep(refresh) };
  const progress = h("div.progress", { role: "status" });
  const tabs = h("div.tabs", { role: "tablist", "aria-label": t("studio.steps") });
  const buttons = {};
  Object.keys(steps).forEach((name, number) => {
    buttons[name] = h(
      "button.tab",
      { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "main", onclick: () => go(name), onkeydown: (event) => move(event, name) },
      h("span.step", { "aria-hidden": "true" }, String(number + 1)),
      h("span", {}, h("strong", {}, t(`step.${name}`)), h("small", {}, t(`step.${name}.sub`)))
    );
    tabs.append(buttons[name]);
  });
  const title = h("span.project", {});
  fill(top, h("div.brand", {}, h("img", { src: "/static/icon.svg", alt: "" }), h("h1", {}, "ogkd studio"), title, progress), tabs);
  let current = null;

  function move(event, name) {
    const names = Object.keys(steps);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(name) + step + names.length) % names.length];
    go(next);
    buttons[next].focus();
  }

  function go(name) {
    if (current) steps[current].leave?.();
    current = name;
    history.replaceState(null, "", `#${name}`);
    for (const [other, button] of Object.entries(buttons)) {
      button.setAttribute("aria-selected", String(other === name));
      button.tabIndex = other === name ? 0 : -1;
    }
    main.setAttribute("aria-labelledby", `tab-${name}`);
    fill(main, steps[name].element);
    steps[name].update();
    steps[name].enter?.();
  }

  let seen = -1;
  let away = false;

  async function refresh({ force = false } = {}) {
    try {
      shared.state = await get("/api/state");
      if (force || shared.images === null || shared.images.version !== shared.state.version) {
        shared.images = await get("/api/images");
      }
      if (away) announce(t("studio.back"));
      away = false;
    } catch (error) {
      if (!shared.state) throw error;
      away = true;
      fill(progress, h("span.away", { role: "alert" }, t("error.away")));
      return;
    }
    title.textContent = shared.state.name;
    fill(progress, progressLine(shared.state));
    if (force || shared.state.version !== seen) {
      seen = shared.state.version;
      if (current) steps[current].update();
    }
  }

  await refresh();
  const wanted = location.hash.slice(1);
  const begun = shared.state.classes.length >= 2 && shared.state.images;
  go(wanted in steps ? wanted : begun ? "label" : "setup");
  const beat = async () => {
    if (!document.hidden) await refresh();
    setTimeout(beat, away ? 3000 : shared.state.stage === "ready" ? 1500 : 800);
  };
  setTimeout(beat, 800);
}

function progressLine(state) {
  if (state.stage === "error" || state.problem) return h("span.away", { role: "alert" }, state.problem);
  if (!state.images) return [];
  if (state.stage === "loading") return h("span", {}, t("progress.loading"));
  if (state.encoded < state.images)
    return [
      h("span", {}, t("progress.encoding", { done: state.encoded, all: state.images, rate: state.rate })),
      bar(state.encoded / state.images),
    ];
  const share = state.labelled / Math.max(1, state.images);
  return h("span", { title: percent(share, 1) }, t("progress.labelled", { labelled: state.labelled, all: state.images }));
}
