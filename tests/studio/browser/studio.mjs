// From an empty project to an exported model, by keyboard and by mouse; prints what was met.
// node studio.mjs PLAYWRIGHT CHROMIUM ADDRESS SHOTS
import { readFileSync } from "node:fs";

const [, , playwright, chromiumPath, address, shots] = process.argv;
const { chromium } = (await import(playwright)).default;
const browser = await chromium.launch({
  executablePath: chromiumPath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const results = { outside: [], failed: [], pageErrors: [], overflow: {} };
const wait = { timeout: 60000 };
const names = ["benign solid mass", "malignant mass", "normal breast tissue", "simple cyst"];

async function open(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => {
    if (!request.url().startsWith(address) && !/^(data|blob):/.test(request.url())) results.outside.push(request.url());
  });
  page.on("response", (response) => {
    if (response.status() >= 400 && response.status() !== 409) results.failed.push(`${response.status()} ${response.url()}`);
  });
  page.on("pageerror", (error) => results.pageErrors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && !/409/.test(message.text()) && results.pageErrors.push(message.text()));
  return page;
}

const state = async (page) => page.evaluate(async () => (await fetch("/api/state")).json());
// The class is in the name of each image of the pile.
const truth = (file) => names.find((name) => file.includes(name.replaceAll(" ", "_"))) ?? names[0];

// Step 1, with the mouse.
const page = await open({ colorScheme: "light", viewport: { width: 1280, height: 900 }, acceptDownloads: true });
await page.goto(address + "/", wait);
await page.waitForSelector(".tabs", wait);
results.title = await page.title();
results.step = await page.locator("[role=tab][aria-selected=true]").innerText();
for (const [number, name] of names.entries()) {
  if (number > 1) await page.click("#add-class");
  await page.locator(".class-row input[type=text]").nth(number).fill(name);
}
await page.click("#save-classes");
await page.waitForSelector(".message .notice", wait);
await page.waitForSelector(".cell .guess", wait); // guesses from the words alone
results.cells = await page.locator(".cell").count();
await page.waitForFunction(async () => (await (await fetch("/api/state")).json()).stage === "ready", null, wait);
results.broken = (await state(page)).unreadable;
results.counts = await page.locator(".counts").innerText();
await page.evaluate(() => scrollTo(0, 0));
await page.screenshot({ path: `${shots}/studio-1.png` });

// Step 2, with the keyboard alone.
await page.focus("#tab-setup");
await page.keyboard.press("ArrowRight");
await page.waitForSelector(".desk .choice[data-class]", wait);
const shown = () => page.locator(".desk > .name").innerText();
async function labelOne() {
  const file = await shown();
  await page.keyboard.press(String(names.indexOf(truth(file)) + 1));
  await page.waitForFunction((old) => document.querySelector(".desk > .name")?.innerText !== old, file, wait);
  return file;
}
const done = [];
for (let count = 0; count < 12; count++) done.push(await labelOne());
results.twice = done.length - new Set(done).size;
results.labelled = (await state(page)).labelled;
// Undo brings the image back; unsure takes it out of the queue.
await page.keyboard.press("z");
await page.waitForFunction((old) => document.querySelector(".desk > .name")?.innerText === old, done.at(-1), wait);
results.undone = (await state(page)).labelled;
await page.keyboard.press("u");
await page.waitForFunction((old) => document.querySelector(".desk > .name")?.innerText !== old, done.at(-1), wait);
results.unsure = (await state(page)).labelled;
for (let count = 0; count < 8; count++) await labelOne();
const began = Date.now();
await labelOne();
await page.waitForFunction(async (labels) => (await (await fetch("/api/state")).json()).fit?.labels === labels, 20, wait);
results.secondsToFit = (Date.now() - began) / 1000;
await page.waitForSelector("#accuracy", wait);
results.accuracy = await page.locator("#accuracy").innerText();
results.hidden = (await page.locator(".hint .classes").count()) === 0;
await page.check("#show-hint");
await page.waitForSelector(".hint .classes", wait);
const guess = await page.locator(".hint .classes").boundingBox();
results.guessBottom = guess.y + guess.height;
await page.waitForTimeout(1600);
await page.screenshot({ path: `${shots}/studio-2.png` });

// A second window labels the image that is on the first one's desk.
const file = await shown();
await page.evaluate(async (wanted) => {
  const images = await (await fetch("/api/images")).json();
  const row = images.names.findIndex((name) => name.endsWith(`/${wanted}`));
  const body = JSON.stringify({ row, state: "label", label: "simple cyst", by: "another window" });
  await fetch("/api/label", { method: "POST", body });
}, file);
await page.keyboard.press("2");
await page.waitForSelector(".desk .message .notice", wait);
results.conflict = await page.locator(".desk .message").innerText();
await page.keyboard.press("2"); // insists
await page.waitForFunction((old) => document.querySelector(".desk > .name")?.innerText !== old, file, wait);

// Step 3.
await page.click("#tab-result");
await page.waitForSelector(".cell", wait);
await page.waitForTimeout(800);
await page.screenshot({ path: `${shots}/studio-3.png` });
await page.focus(".gallery");
await page.keyboard.press("ArrowRight");
await page.keyboard.press("Enter");
await page.waitForSelector("dialog[open] .classes", wait);
await page.getByText("Show where it looks").click();
await page.waitForSelector("dialog figure img, dialog .detail-words .notice", wait); // a map, or why there is none
results.drawn = await page.locator("dialog img").evaluateAll((all) => Promise.all(all.map((one) => one.decode().then(() => one.naturalWidth > 0))).then((each) => each.every(Boolean)));
results.described = await page.locator("dialog img").evaluateAll((all) => all.every((one) => one.alt.length > 0));
await page.screenshot({ path: `${shots}/studio-4.png` });
const before = (await state(page)).labelled;
await page.keyboard.press("3"); // correct it
await page.waitForSelector("dialog .notice[role=status]", wait);
await page.waitForFunction(async (labels) => (await (await fetch("/api/state")).json()).labelled > labels, before, wait);
results.corrected = (await state(page)).labelled - before;
await page.locator("dialog").getByText("Close").click();
await page.waitForSelector("dialog", { ...wait, state: "detached" });
const [download] = await Promise.all([page.waitForEvent("download", wait), page.click("#export")]);
results.export = { name: download.suggestedFilename(), bytes: readFileSync(await download.path()).length };
await page.waitForSelector("#export:not([disabled])", wait);
results.unnamed = await page.evaluate(() => [...document.querySelectorAll("button, input:not([aria-hidden]), select, textarea")].filter((one) => !(one.textContent?.trim() || one.getAttribute("aria-label") || one.labels?.length || one.placeholder)).map((one) => one.outerHTML.slice(0, 80)));
results.light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
await page.context().close();

// Dark and narrow: every step.
for (const [mode, options] of [["dark", { colorScheme: "dark", viewport: { width: 1280, height: 900 } }], ["narrow", { viewport: { width: 400, height: 860 } }]]) {
  const other = await open(options);
  for (const step of ["setup", "label", "result"]) {
    await other.goto(`${address}/#${step}`, wait);
    await other.reload();
    await other.waitForSelector(step === "label" ? ".choice[data-class]" : ".cell", wait);
    await other.waitForTimeout(500);
    results.overflow[`${mode} ${step}`] = await other.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await other.screenshot({ path: `${shots}/${mode}-${step}.png` });
  }
  results[mode] = await other.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await other.context().close();
}
await browser.close();
console.log(JSON.stringify(results));
