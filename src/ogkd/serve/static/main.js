// What this server offers decides what the page is: the studio, or the use of a model alone.

import { fill, get, h, loadWords, t } from "./dom.js";
import { modelList, usePanel } from "./use.js";

const top = document.querySelector("#top");
const main = document.querySelector("#main");
const bottom = document.querySelector("#bottom");

async function start() {
  await loadWords();
  document.querySelector(".skip").textContent = t("page.skip");
  const facts = await get("/model");
  const caution = h("p.caution", {}, h("strong", {}, t("page.caution")), " ", facts.caution);
  fill(bottom, facts.studio && caution, h("p.private", {}, t("page.private")));
  if (facts.studio) {
    const { openStudio } = await import("./studio.js");
    await openStudio(facts, top, main);
    return;
  }
  fill(top, h("div.brand", {}, h("img", { src: "/static/icon.svg", alt: "" }), h("h1", {}, "ogkd")), caution, modelList(facts));
  fill(main, usePanel(facts));
}

start().catch((error) => fill(main, h("div.error", { role: "alert" }, error.message)));
