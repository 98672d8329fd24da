// Step 2: one image after the other, one key per class; how good the model is, beside it.

import { announce, bar, fill, get, h, percent, post, t } from "./dom.js";
import { classTable, ranked } from "./use.js";
import { classNames, me, shared } from "./studio.js";

const KEYS = "123456789";
const ENOUGH = 9; // labels of each class from which on sets keep their promise for each
const OTHERS = { u: "unsure", s: "skip", x: "unusable" };

export function labelStep(refresh) {
  let queue = [];
  let row = null;
  let busy = false;
  let asked = 0;
  const image = h("img", { alt: "" });
  const frame = h("div.frame", {}, image);
  const name = h("p.name.help", {});
  const buttons = h("div.choices", { role: "group", "aria-label": t("label.choose") });
  const others = h("div.choices.others", { role: "group", "aria-label": t("label.others") });
  const status = h("div.message", { role: "status" });
  const hint = h("div.hint.card", { hidden: true });
  const saved = h("p.saved", { role: "status" });
  const showHint = h("input", { type: "checkbox", id: "show-hint", checked: localStorage.getItem("hint") === "yes" });
  showHint.addEventListener("change", () => {
    localStorage.setItem("hint", showHint.checked ? "yes" : "no");
    drawHint();
  });
  const panel = h("div.card", {});
  const desk = h("section.card.desk", { "aria-label": t("label.title") });
  const element = h("div.columns.label-step", {}, desk, h("section.side", {}, hint, panel));

  function drawDesk() {
    const names = classNames();
    if (names.length < 2) {
      fill(desk, h("p.welcome", {}, t("label.needs.classes")), goSetup());
      return;
    }
    if (!shared.state.images) {
      fill(desk, h("p.welcome", {}, t("label.needs.images")), goSetup());
      return;
    }
    fill(
      buttons,
      names.map((item, number) => h("button.choice", { type: "button", onclick: () => mark("label", item), "data-class": item }, h("kbd", {}, KEYS[number] ?? ""), h("span", {}, item)))
    );
    fill(
      others,
      Object.entries(OTHERS).map(([key, state]) => h("button.choice.small", { type: "button", title: t(`state.${state}.help`), onclick: () => mark(state) }, h("kbd", {}, key.toUpperCase()), h("span", {}, t(`state.${state}.do`)))),
      h("button.choice.small", { type: "button", id: "undo", onclick: undo }, h("kbd", {}, "Z"), h("span", {}, t("label.undo")))
    );
    if (row === null) {
      const waiting = shared.state.stage !== "ready" && shared.state.stage !== "error";
      fill(desk, h("p.welcome", { role: "status" }, t(waiting ? "label.waiting" : "label.done")), others, status);
      return;
    }
    fill(desk, h("div.row.bar-row", {}, h("h2", {}, t("label.question")), h("label.select", { htmlFor: "show-hint" }, showHint, t("label.show.hint"))), frame, name, buttons, others, saved, status);
  }

  const goSetup = () => h("p.welcome", {}, h("button.main-button", { type: "button", onclick: () => document.querySelector("#tab-setup").click() }, t("label.go.setup")));

  async function more() {
    const turn = ++asked;
    try {
      const reply = await get(`/api/next?by=${me}`);
      if (turn !== asked) return;
      queue = reply.rows.filter((item) => item !== row);
      if (row === null) next();
      for (const item of queue.slice(0, 3)) new Image().src = `/image/${item}`;
    } catch (error) {
      fill(status, h("div.error", { role: "alert" }, error.message));
    }
  }

  function next() {
    row = queue.shift() ?? null;
    if (row !== null) {
      image.src = `/image/${row}`;
      const short = shared.images.names[row].split("/").pop();
      image.alt = t("label.image.alt", { name: short });
      name.textContent = short;
    }
    drawDesk();
    drawHint();
  }

  async function drawHint() {
    fill(hint);
    hint.hidden = true;
    if (row === null || !showHint.checked || !shared.state.fit) return;
    const here = row;
    try {
      const reply = await get(`/api/look/${row}`);
      if (here !== row || !reply.decision) return;
      hint.hidden = false;
      fill(hint, classTable(ranked(reply.decision.probabilities).slice(0, 4), t(reply.learned ? "label.hint" : "label.hint.text")));
      if (reply.decision.unfamiliar) hint.append(h("p.help", {}, t("detail.unfamiliar")));
    } catch {
      // a hint is not needed to label
    }
  }

  let conflict = null; // the last answer that another window was first: its row and number
  async function mark(state, label = null) {
    if (row === null || busy) return;
    busy = true;
    const here = row;
    try {
      // What a conflict showed has been seen, even if an older answer to refresh() came after it.
      const seen = conflict?.row === here ? conflict.number : shared.images.mark[here];
      const got = await post("/api/label", { row: here, state, label, by: me, seen });
      conflict = null;
      shared.images.mark[here] = got.number;
      shared.images.state[here] = state;
      shared.images.label[here] = label === null ? -1 : classNames().indexOf(label);
      fill(status);
      saved.textContent = t("label.saved", { name: label ?? t(`state.${state}`) });
      const guess = shared.images.predicted?.[here] ?? -1;
      if (guess >= 0) saved.textContent += ` ${t("label.guessed", { name: classNames()[guess], share: percent(shared.images.probability[here]) })}`;
      announce(saved.textContent);
      next();
      if (queue.length < 4) await more();
      else more();
    } catch (error) {
      if (error.status === 409) {
        conflict = { row: here, number: error.body.number };
        const other = error.body.label ?? t(`state.${error.body.state}`);
        fill(status, h("div.notice", { role: "alert" }, t("label.conflict", { name: other })));
      } else fill(status, h("div.error", { role: "alert" }, t("label.not.saved"), " ", error.message));
    } finally {
      busy = false;
    }
  }

  async function undo() {
    if (busy) return;
    busy = true;
    try {
      const got = await post("/api/undo", { by: me });
      await refresh({ force: true });
      if (got.row === null) fill(status, h("div.notice", {}, t("label.nothing")));
      else {
        if (row !== null) queue.unshift(row);
        queue = queue.filter((item) => item !== got.row);
        queue.unshift(got.row);
        next();
        saved.textContent = t("label.undone");
        announce(saved.textContent);
      }
    } catch (error) {
      fill(status, h("div.error", { role: "alert" }, error.message));
    } finally {
      busy = false;
    }
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox") return;
    const pressed = event.key.toLowerCase();
    const number = KEYS.indexOf(pressed);
    if (number >= 0 && number < classNames().length) mark("label", classNames()[number]);
    else if (pressed in OTHERS) mark(OTHERS[pressed]);
    else if (pressed === "z") undo();
    else return;
    event.preventDefault();
  }

  // What to do next, in one sentence.
  function advice(state, missing, judged) {
    if (!state.labelled) return t("next.begin");
    if (missing.length) return t("next.missing", { names: missing.join(", ") });
    if (!judged?.fair) return t("next.fair");
    const fewest = Math.min(...state.classes.map((item) => item.labels));
    if (fewest < ENOUGH) return t("next.nine", { count: ENOUGH, names: state.classes.filter((item) => item.labels < ENOUGH).map((item) => item.name).join(", ") });
    return t("next.enough");
  }

  function drawPanel() {
    const { state } = shared;
    const fit = state.fit;
    const most = Math.max(1, ...state.classes.map((item) => item.labels));
    const parts = [h("h2", {}, t("learn.title"))];
    parts.push(
      h(
        "table.classes",
        {},
        h("caption", {}, t("learn.counts")),
        h("tbody", {}, state.classes.map((item) => h("tr", {}, h("th", { scope: "row" }, item.name), h("td", {}, bar(item.labels / most)), h("td.number", {}, String(item.labels)))))
      )
    );
    const missing = state.classes.filter((item) => !item.labels).map((item) => item.name);
    const judged = fit?.judged;
    parts.push(h("p.notice", { id: "next" }, advice(state, missing, judged)));
    if (judged && judged.accuracy !== null) {
      const [low, high] = judged.interval;
      parts.push(
        h("p.big", {}, h("strong", { id: "accuracy" }, percent(judged.accuracy)), h("span", {}, t("learn.interval", { low: percent(low), high: percent(high) }))),
        h("p.help", {}, `${judged.basis}. `, t(judged.fair ? "learn.fair" : "learn.hard"), judged.of < fit.labels && ` ${t("learn.updating")}`),
        judged.weakest && h("p", { id: "weakest" }, judged.weakest)
      );
    }
    if (fit?.complete) parts.push(h("button.main-button.onward", { type: "button", onclick: () => document.querySelector("#tab-result").click() }, t("label.onward")));
    fill(panel, parts);
  }

  function update() {
    if (row === null || queue.length < 3) more();
    if (row === null) drawDesk();
    drawPanel();
  }

  return {
    element,
    update,
    enter() {
      document.addEventListener("keydown", key);
      drawDesk();
      drawHint();
    },
    leave: () => document.removeEventListener("keydown", key),
  };
}
