// Ask the served model about images: an upload, and a card for its answer to each case.

import { announce, bar, dropZone, fill, h, percent, send, t } from "./dom.js";

export function usePanel(facts) {
  const shown = h("div", { id: "answer" }, welcome());
  const clear = h("button.quiet", { id: "clear", type: "button", onclick: () => fill(shown, welcome()) }, t("use.clear"));
  const limits = t("use.limits", {
    formats: facts.formats,
    mb: facts.max_bytes / 1e6,
  });
  const label = t(facts.models.some((model) => model.cases) ? "use.drop.cases" : "use.drop");
  const zone = dropZone({ id: "upload", label, hint: limits, multiple: true, taken: ask });

  async function ask(files) {
    const [file] = files;
    const several = files.length > 1;
    fill(shown, h("p.loading", { role: "status" }, several ? t("use.asking.several", { count: files.length }) : t("use.asking", { name: file.name })));
    try {
      const form = new FormData();
      for (const part of files) form.append("file", part, part.name);
      const name = encodeURIComponent(file.name);
      const reply = await send(`/predict?images=true&name=${name}`, several ? form : file);
      fill(shown, answer(reply));
      announce(reply.models.map((entry) => `${[entry.model, caseName(reply, entry)].filter(Boolean).join(", ")}: ${headline(entry)}`).join(". "));
    } catch (error) {
      fill(shown, h("div.error", { role: "alert" }, h("strong", {}, t("use.none")), " ", error.message));
    }
  }

  return h("section.use", { "aria-label": t("use.title") }, zone, shown, clear);
}

const welcome = () => h("p.welcome", { role: "status" }, t("use.welcome"));

function headline(entry) {
  if (entry.reasons.length) return t("answer.uncertain");
  return t(entry.set ? "answer.suggestion" : "answer.probable", { name: entry.prediction });
}

// The name of the case that an answer is about, if the upload has several.
function caseName(reply, entry) {
  return new Set(reply.models.map((other) => other.case)).size > 1 ? entry.case : "";
}

// An unfamiliar image, or one that the model abstains from: its probabilities mean nothing.
const withheld = (entry) => entry.unfamiliar || entry.abstain;

function answer(reply) {
  const cases = reply.models.some((entry) => caseName(reply, entry));
  return h(
    "div.answer",
    {},
    h(
      "section.shown",
      { "aria-label": t("answer.image") },
      h("img", { src: reply.image.preview, alt: t("answer.image.alt") }),
      h("p", {}, h("strong.name", {}, reply.image.name), h("br"), t("answer.size", reply.image)),
      reply.models.some((entry) => entry.images > 1) && h("p", {}, t("case.shown")),
      cases && h("p", { role: "status" }, t("case.several")),
      reply.image.note && h("p", {}, reply.image.note)
    ),
    h("div.cards", {}, reply.models.map((entry, number) => card(entry, number, caseName(reply, entry))))
  );
}

function card(entry, number, name) {
  const sure = entry.answers ? entry.calibrated : entry.set !== null; // it can tell when it is unsure
  const kind = entry.reasons.length ? "uncertain" : sure ? "suggested" : "unknown";
  const answered = (name) => (entry.answers ? `${name}: ${entry.answers[name]}` : name);
  const rows = ranked(entry.probabilities).map(([name, p]) => [answered(name), p]);
  const table = classTable(rows, t(entry.calibrated ? "answer.calibrated" : "answer.uncalibrated"));
  const coverage = percent(entry.coverage, Number.isInteger(100 * entry.coverage) ? 0 : 1);
  let below = null;
  if (entry.reasons.length) below = h("ul", {}, entry.reasons.map((reason) => h("li", {}, reason)));
  else if (!sure || !entry.answers) below = h("p", {}, sure ? t("answer.only") : t("answer.cannot"));
  const joined = entry.images > 1;
  const heading = `model-${number}`;
  return h(
    "article.card",
    { "aria-labelledby": heading },
    h("h2", { id: heading }, entry.model, " ", h("small", {}, entry.method), name && h("span.case", {}, name)),
    h(`div.state.${kind}`, { role: entry.reasons.length ? "alert" : "status" }, h("strong", {}, headline(entry)), below),
    entry.note && h("p.set", {}, entry.note),
    withheld(entry) ? h("details.withheld", {}, h("summary", {}, t("answer.withheld")), table) : table,
    entry.set && !withheld(entry) && h(
      "p.set",
      { title: t("help.set") },
      t("answer.set", { coverage }),
      " ",
      h("strong", {}, entry.set.join(", ") || t("answer.none"))
    ),
    joined && deciding(entry),
    joined && entry.evidence && h("h3", {}, t("case.evidence")),
    entry.evidence && evidenceFigure(entry.evidence)
  );
}

// The images of a case that weigh most in its answer.
function deciding(answered) {
  const name = (entry) => {
    const [, index] = /[#,]index=(\w+)$/.exec(entry.path) ?? [];
    const [, x, y] = /#tile=(\d+),(\d+),/.exec(entry.path) ?? [];
    if (index) return t("case.slice", { number: Number(index) + 1 });
    return x ? t("case.tile", { x, y }) : entry.path;
  };
  return [
    h("h3", {}, t("case.deciding", { count: answered.images })),
    h("ol.deciding", {}, answered.decided_by.map((entry) => h(
      "li",
      {},
      entry.image && h("img", { src: entry.image, alt: t("case.alt", { name: name(entry) }) }),
      h("span", { title: entry.path }, name(entry)),
      " ",
      h("span.number", {}, t("case.weight", { weight: percent(entry.weight) }))
    ))),
  ];
}

// Where the answer comes from; in words alone if the map marks nothing that matters more.
export function evidenceFigure(map) {
  const name = map.class;
  if (!map.image) return h("p.notice", { role: "status" }, t("evidence.none", { name }));
  const tried = map.check && t("evidence.tried", { share: percent(map.check.blurred), marked: lost(map.check.marked), random: lost(map.check.random) });
  return h(
    "figure",
    {},
    h("img", { src: map.image, alt: t("evidence.alt", { name }) }),
    h("figcaption", {}, t("evidence.parts", { name }), tried && h("span.tried", {}, tried))
  );
}

const lost = (share) => (share >= 1 ? t("evidence.all") : share <= 0 ? t("evidence.nothing") : t("evidence.part", { share: percent(share) }));

export const ranked = (probabilities) => Object.entries(probabilities).sort((a, b) => b[1] - a[1]);

export function classTable(rows, caption) {
  return h(
    "table.classes",
    {},
    h("caption", {}, caption),
    h(
      "tbody",
      {},
      rows.map(([name, share], rank) => h(
        rank ? "tr" : "tr.first",
        {},
        h("th", { scope: "row" }, name),
        h("td", {}, bar(share)),
        h("td.number", {}, percent(share, 1))
      ))
    )
  );
}

export function modelList(facts) {
  return h(
    "ul.models",
    {},
    facts.models.map((entry) => h(
      "li",
      {},
      h("strong", {}, entry.name),
      ` (${entry.method}): ${entry.classes.join(", ")}`,
      entry.calibrated ? "" : `. ${t("model.uncalibrated")}`,
      entry.quality ? `. ${entry.quality}` : "",
      entry.note ? `. ${entry.note}` : ""
    ))
  );
}
