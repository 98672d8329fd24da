// One image in a dialog: what the model says and why, and its label to set or correct.

import { announce, fill, get, h, post, t, percent } from "./dom.js";
import { classTable, evidenceFigure, ranked } from "./use.js";
import { classNames, me, shared } from "./studio.js";

export function openDetail(row, rows, refresh) {
  const body = h("div.detail", {});
  const close = h("button.quiet", { type: "button", onclick: () => dialog.close() }, t("detail.close"));
  const before = h("button.quiet", { type: "button", onclick: () => step(-1) }, t("detail.before"));
  const after = h("button.quiet", { type: "button", onclick: () => step(1) }, t("detail.after"));
  const dialog = h("dialog", { "aria-label": t("detail.title") }, h("div.row.bar-row", {}, h("div.row", {}, before, after), close), body);
  dialog.addEventListener("close", () => {
    document.removeEventListener("keydown", keys);
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  // On the document: a button that disappears while it has the focus would take the keys with it.
  function keys(event) {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
    else if ("123456789".includes(event.key) && classNames()[event.key - 1]) mark("label", classNames()[event.key - 1]);
    else if (event.key.toLowerCase() === "x") mark("unusable");
    else return;
    event.preventDefault();
  }
  document.addEventListener("keydown", keys);
  document.body.append(dialog);
  dialog.showModal();
  show();

  function step(by) {
    const position = rows.indexOf(row) + by;
    if (position < 0 || position >= rows.length) return;
    row = rows[position];
    show();
  }

  let known = null;

  async function show(message = "") {
    const here = row;
    try {
      known = await get(`/api/look/${row}`);
    } catch (error) {
      fill(body, h("div.error", { role: "alert" }, error.message));
      return;
    }
    if (here !== row) return;
    draw(message);
  }

  function draw(message) {
    const fit = shared.state.fit;
    const evidence = h("div", {});
    const coverage = percent(fit?.coverage ?? 0.9);
    const view = known.error
      ? h("div.error", {}, known.error)
      : h("img", { src: `/image/${row}`, alt: t("label.image.alt", { name: known.name.split("/").pop() }) });
    const words = [];
    const decision = known.decision ?? {};
    if (decision.unfamiliar) words.push(h("div.state.uncertain", {}, t("detail.unfamiliar")));
    if (known.copy_of !== null && known.copy_of !== undefined) words.push(h("p.notice", {}, t("detail.copy", { name: shared.images.names[known.copy_of].split("/").pop() })));
    if (known.decision) words.push(classTable(ranked(decision.probabilities), t(known.learned ? "detail.says" : "detail.texts")));
    if (decision.set) words.push(h("p.set", { title: t("help.set") }, t("answer.set", { coverage }), " ", h("strong", {}, decision.set.join(", ") || t("answer.none"))));
    if (shared.state.fit?.complete && !known.error)
      words.push(
        h("button.button", {
          type: "button",
          onclick: async (event) => {
            event.target.hidden = true;
            fill(evidence, h("p.loading", { role: "status" }, "…"));
            try {
              const reply = await get(`/api/look/${row}?evidence=1`);
              fill(evidence, reply.evidence && evidenceFigure(reply.evidence));
            } catch (error) {
              fill(evidence, h("div.error", { role: "alert" }, error.message));
            }
          },
        }, t("detail.why")),
        evidence
      );
    const label = known.label ?? (known.state ? t(`state.${known.state}`) : t("detail.open"));
    fill(
      body,
      h(
        "div.detail-image",
        {},
        view,
        h("p.name.help", { title: known.name }, known.name.split("/").pop())
      ),
      h(
        "div.detail-words",
        {},
        h("p", {}, t("detail.label"), " ", h("strong", {}, label)),
        message && h("p.notice", { role: "status" }, message),
        h(
          "div.choices",
          { role: "group", "aria-label": t("label.choose") },
          classNames().map((name, number) => h("button.choice", { type: "button", "aria-pressed": String(known.label === name), onclick: () => mark("label", name) }, h("kbd", {}, String(number + 1)), h("span", {}, name))),
          h("button.choice.small", { type: "button", onclick: () => mark("unusable") }, h("kbd", {}, "X"), h("span", {}, t("state.unusable.do"))),
          (known.label || known.state) && h("button.choice.small", { type: "button", onclick: () => mark("clear") }, h("span", {}, t("detail.clear")))
        ),
        words
      )
    );
  }

  async function mark(state, label = null) {
    try {
      const got = await post("/api/label", { row, state, label, by: me, seen: known.mark });
      announce(t("label.saved", { name: label ?? t(`state.${state}`) }));
      await refresh({ force: true });
      known.mark = got.number;
      await show(t("label.saved", { name: label ?? t(`state.${state}`) }));
    } catch (error) {
      await show(error.message);
    }
  }
}
