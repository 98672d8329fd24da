// Ask the served models about one image or exam: an upload, and a card for each model's answer.

import { announce, bar, dropZone, fill, h, percent, send, t } from "./dom.js";

export function usePanel(facts) {
  const shown = h("div", { id: "answer" }, welcome());
  const clear = h("button.quiet", { id: "clear", type: "button", onclick: () => fill(shown, welcome()) }, t("use.clear"));
  const limits = t("use.limits", {
    formats: facts.formats,
    mb: facts.max_bytes / 1e6,
    megapixels: facts.max_pixels / 1e6,
  });
  const exams = facts.models.some((one) => one.bags);
  const label = t(exams ? "use.drop.exam" : "use.drop");
  const zone = dropZone({ id: "upload", label, hint: limits, multiple: exams, taken: ask });

  async function ask(files) {
    const [file] = files;
    const several = files.length > 1;
    fill(shown, h("p.loading", { role: "status" }, several ? t("use.asking.exam", { count: files.length }) : t("use.asking", { name: file.name })));
    try {
      const form = new FormData();
      for (const one of files) form.append("file", one, one.name);
      const name = encodeURIComponent(file.name);
      const said = await send(`/predict?pictures=true&name=${name}`, several ? form : file);
      fill(shown, answer(said));
      announce(said.models.map((one) => `${[one.model, exam(said, one)].filter(Boolean).join(", ")}: ${headline(one)}`).join(". "));
    } catch (error) {
      fill(shown, h("div.error", { role: "alert" }, h("strong", {}, t("use.none")), " ", error.message));
    }
  }

  return h("section.use", { "aria-label": t("use.title") }, zone, shown, clear);
}

const welcome = () => h("p.welcome", { role: "status" }, t("use.welcome"));

function headline(one) {
  if (one.uncertain) return t("answer.uncertain");
  return t(one.conformal_set ? "answer.suggestion" : "answer.probable", { name: one.prediction });
}

// The name of the exam that an answer is about, if the upload has several.
function exam(said, one) {
  const names = new Set(said.models.flatMap((other) => (other.bag ? [other.bag.name] : [])));
  return names.size > 1 && one.bag ? one.bag.name : "";
}

function answer(said) {
  const exams = said.models.some((one) => exam(said, one));
  const several = said.models.length > 1 && !exams && !said.models.some((one) => one.withheld);
  const first = new Set(said.models.map((one) => one.prediction));
  const agree = several && h(
    "p.agree",
    { role: "status" },
    first.size === 1 ? t("answer.agree", { count: said.models.length, name: [...first][0] }) : t("answer.disagree")
  );
  return h(
    "div.answer",
    {},
    h(
      "section.picture",
      { "aria-label": t("answer.image") },
      h("img", { src: said.image.preview, alt: t("answer.image.alt") }),
      h("p", {}, h("strong.name", {}, said.image.name), h("br"), t("answer.size", said.image)),
      said.models.some((one) => one.bag) && h("p", {}, t("bag.shown")),
      exams && h("p", { role: "status" }, t("bag.several")),
      said.image.note && h("p", {}, said.image.note),
      agree
    ),
    h("div.cards", {}, said.models.map((one, number) => card(one, number, exam(said, one))))
  );
}

function card(one, number, name) {
  const sure = one.findings ? one.calibrated : one.conformal_set !== null; // it can tell when it is unsure
  const kind = one.uncertain ? "uncertain" : sure ? "suggested" : "unknown";
  const answered = (name) => (one.findings ? `${name}: ${one.findings[name]}` : name);
  const rows = Object.entries(one.probabilities).map(([name, p]) => [answered(name), p]);
  const table = classTable(rows, t(one.calibrated ? "answer.calibrated" : "answer.uncalibrated"));
  const coverage = percent(one.coverage, Number.isInteger(100 * one.coverage) ? 0 : 1);
  let below = null;
  if (one.uncertain) below = h("ul", {}, one.reasons.map((reason) => h("li", {}, reason)));
  else if (!sure || !one.findings) below = h("p", {}, sure ? t("answer.only", { coverage }) : t("answer.cannot"));
  const heading = `model-${number}`;
  return h(
    "article.card",
    { "aria-labelledby": heading },
    h("h2", { id: heading }, one.model, " ", h("small", {}, one.method), name && h("span.exam", {}, name)),
    h(`div.state.${kind}`, { role: one.uncertain ? "alert" : "status" }, h("strong", {}, headline(one)), below),
    one.note && h("p.set", {}, one.note),
    one.withheld ? h("details.withheld", {}, h("summary", {}, t("answer.withheld")), table) : table,
    one.conformal_set && !one.withheld && h(
      "p.set",
      { title: t("help.set") },
      t("answer.set", { coverage }),
      " ",
      h("strong", {}, one.conformal_set.join(", ") || t("answer.none"))
    ),
    one.bag && deciding(one.bag),
    one.bag && one.evidence && h("h3", {}, t("bag.evidence")),
    one.evidence && evidenceFigure(one.evidence),
    one.similar.length > 0 && h("h3", {}, t("answer.similar")),
    one.similar.length > 0 && h(
      "ol.similar",
      {},
      one.similar.map((near) => h(
        "li",
        {},
        near.picture && h("img", { src: near.picture, alt: t("answer.similar.alt", { name: near.class }) }),
        h("span", {}, near.class),
        " ",
        h("span.number", {}, near.similarity.toFixed(2))
      ))
    )
  );
}

// The pictures of an exam or volume that weigh most in its answer.
function deciding(bag) {
  const name = (one) => {
    const [, index] = /(?:^|,)index=(\w+)$/.exec(one.part) ?? [];
    const [, x, y] = /^tile=(\d+),(\d+),/.exec(one.part) ?? [];
    if (index) return t("bag.slice", { index });
    return x ? t("bag.tile", { x, y }) : one.file;
  };
  return [
    h("h3", {}, t("bag.deciding", { count: bag.pictures })),
    h("ol.similar.deciding", {}, bag.decided_by.map((one) => h(
      "li",
      {},
      one.picture && h("img", { src: one.picture, alt: t("bag.alt", { name: name(one) }) }),
      h("span", { title: one.part ? `${one.file}#${one.part}` : one.file }, name(one)),
      " ",
      h("span.number", {}, t("bag.share", { share: percent(one.share) }))
    ))),
  ];
}

// Where the answer comes from; in words alone if the map marks nothing that matters more.
export function evidenceFigure(found) {
  const name = found.class;
  if (!found.picture) return h("p.notice", { role: "status" }, t("evidence.none", { name }));
  const tried = found.check && t("evidence.tried", { share: percent(found.check.blurred), marked: lost(found.check.marked), random: lost(found.check.random) });
  return h(
    "figure",
    {},
    h("img", { src: found.picture, alt: t("evidence.alt", { name }) }),
    h("figcaption", {}, t(`evidence.${found.kind}`, { name }), tried && h("span.tried", {}, tried))
  );
}

const lost = (share) => (share >= 1 ? t("evidence.all") : share <= 0 ? t("evidence.nothing") : percent(share));

export function classTable(rows, caption) {
  return h(
    "table.classes",
    {},
    h("caption", {}, caption),
    h(
      "tbody",
      {},
      rows.map(([name, share], place) => h(
        place ? "tr" : "tr.first",
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
    facts.models.map((one) => h(
      "li",
      {},
      h("strong", {}, one.name),
      ` (${one.method}): ${one.classes.join(", ")}`,
      one.calibrated ? "" : `. ${t("model.uncalibrated")}`,
      one.note ? `. ${one.note}` : ""
    ))
  );
}
