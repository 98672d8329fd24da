// Step 3: what the model says of the rest, the way out, and a place to ask about another image.

import { fill, h, percent, t } from "./dom.js";
import { Gallery } from "./gallery.js";
import { openDetail } from "./detail.js";
import { usePanel } from "./use.js";
import { classNames, shared } from "./studio.js";
import { FILTERS, SORTS, chosen, sortSelect } from "./order.js";

export function resultStep(refresh) {
  const gallery = new Gallery({ label: t("result.gallery"), open: (row, rows) => openDetail(row, rows, refresh) });
  const sort = sortSelect(() => draw(), SORTS);
  sort.select.value = "doubt";
  const filter = sortSelect(() => draw(), FILTERS, "filter");
  filter.select.value = "open";
  const summary = h("div.summary", {});
  const count = h("span.count", { role: "status" });
  const status = h("div.message", { role: "status" });
  const link = h("button.button.export", { type: "button", id: "export", onclick: save }, h("strong", {}, t("export.all")), h("small", {}, t("export.all.help")));
  let ask = null;

  async function save() {
    link.disabled = true;
    fill(status, h("div.notice", {}, t("export.working")));
    try {
      const reply = await fetch("/api/export");
      if (!reply.ok) throw new Error((await reply.json()).error);
      const name = /filename="([^"]*)"/.exec(reply.headers.get("content-disposition"))[1];
      const file = h("a", { href: URL.createObjectURL(await reply.blob()), download: name });
      file.click();
      setTimeout(() => URL.revokeObjectURL(file.href), 10000);
      fill(status, h("div.notice", {}, t("export.done", { name })));
    } catch (error) {
      fill(status, h("div.error", { role: "alert" }, error.message));
    } finally {
      link.disabled = false;
    }
  }

  const other = h("div", {});
  const element = h(
    "div.columns",
    {},
    h(
      "section.side",
      {},
      h("div.card", {}, h("h2", {}, t("result.title")), summary),
      h("div.card", {}, h("h2", {}, t("export.title")), link, status),
      h("div.card", {}, h("details", {}, h("summary", {}, t("use.title")), other))
    ),
    h("section.wide", {}, h("div.row.bar-row", {}, h("h2", {}, t("result.gallery")), count, filter.element, sort.element), gallery.element)
  );

  function draw() {
    const rows = chosen(shared.images, sort.value(), filter.value());
    count.textContent = t("result.count", { count: rows.length });
    gallery.show(rows, shared.images, classNames());
  }

  function update() {
    const { state, images } = shared;
    const names = classNames();
    const options = [...filter.select.options].map((item) => item.value);
    names.forEach((name, number) => {
      const value = `class:${number}`;
      if (!options.includes(value)) filter.select.append(h("option", { value }, t("filter.class", { name })));
    });
    const fit = state.fit;
    const open = images.names.map((_, row) => row).filter((row) => images.label[row] < 0 && images.known[row] && !images.state[row]);
    const parts = [];
    if (!fit) parts.push(h("p.notice", {}, t("result.none")));
    else {
      if (!fit.learned) parts.push(h("p.notice", {}, t("result.texts")));
      else if (!fit.complete) parts.push(h("p.notice", {}, t("result.missing", { names: state.classes.filter((item) => !item.labels).map((item) => item.name).join(", ") })));
      const judged = fit.judged;
      if (judged?.summary) parts.push(h("p", {}, judged.summary));
      if (fit.has_sets) {
        const sure = open.filter((row) => images.plausible[row] === 1 && !images.unfamiliar?.[row]).length;
        const promise = t(fit.exact ? "result.sets.exact" : "result.sets.estimate", { coverage: percent(fit.coverage) });
        parts.push(h("p", {}, t("result.sure", { sure, all: open.length })), h("p.help", {}, t("result.sets.help"), " ", promise));
      } else if (fit.complete) parts.push(h("p.help", {}, t("result.few")));
      parts.push(h("table.classes", {}, h("caption", {}, t("result.predicted")), h("tbody", {}, names.map((name, number) => h("tr", {}, h("th", { scope: "row" }, name), h("td.number", {}, String(open.filter((row) => images.predicted?.[row] === number).length)))))));
    }
    fill(summary, parts);
    link.disabled = !fit?.complete;
    if (!ask && fit?.complete) {
      ask = usePanel(shared.facts);
      fill(other, ask);
    }
    draw();
  }

  return { element, update };
}
