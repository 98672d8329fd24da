// Uses the page as people do and prints what they meet, as one JSON object.
// node page.mjs PLAYWRIGHT CHROMIUM ADDRESS GOOD STRANGER BROKEN SHOTS UNCALIBRATED
const [, , playwright, chromiumPath, address, good, stranger, broken, shots, uncalibrated] = process.argv;
const { chromium } = (await import(playwright)).default;

const browser = await chromium.launch({
  executablePath: chromiumPath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const results = { outside: [], failed: [], pageErrors: [] };
const wait = { timeout: 90000 };

async function open(options, at = address) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(at) && !/^(data|blob):/.test(url)) results.outside.push(url);
  });
  page.on("response", (response) => {
    if (response.status() >= 400) results.failed.push(`${response.status()} ${response.url()}`);
  });
  page.on("pageerror", (error) => results.pageErrors.push(String(error)));
  // Heard from the start: playwright takes a while to intercept the dialog.
  page.on("filechooser", (chooser) => chooser.setFiles(good));
  await page.goto(at + "/", wait);
  await page.waitForSelector("#upload", wait);
  return page;
}

async function upload(page, file) {
  await page.evaluate(() => document.querySelector("#answer > *")?.setAttribute("data-old", ""));
  await page.locator(".drop-zone input[type=file]").setInputFiles(file);
  await page.waitForSelector("#answer > :not([data-old]):not(.loading)", wait);
}

const texts = (page, selector) => page.locator(selector).allInnerTexts();

// A mouse, a wide light screen: a good image, a broken file, an image of another kind.
const light = await open({ colorScheme: "light", viewport: { width: 1280, height: 900 } });
results.header = await texts(light, "body");
results.title = await light.title();
results.language = await light.getAttribute("html", "lang");
await upload(light, good);
results.good = {
  models: await texts(light, ".card h2"),
  states: await texts(light, ".state"),
  classes: await texts(light, ".card:first-child .classes tr"),
  sets: await texts(light, ".set"),
  evidence: await light.locator("figure img, .card > .notice").count(),
  drawn: await light.locator("main img").evaluateAll((all) => all.every((one) => one.naturalWidth > 0)),
  described: await light.locator("main img").evaluateAll((all) => all.every((one) => one.alt.length > 0)),
};
await light.screenshot({ path: `${shots}/light.png`, fullPage: true });
await upload(light, broken);
results.broken = { alert: await texts(light, "[role=alert]"), cards: await light.locator(".card").count() };
await light.screenshot({ path: `${shots}/error.png` });
await upload(light, stranger);
results.stranger = await texts(light, ".uncertain");
results.withheld = {
  shown: await light.locator(".withheld .number").first().isVisible(),
  summary: await texts(light, ".withheld summary"),
};
await light.screenshot({ path: `${shots}/stranger.png`, fullPage: true });
await light.locator(".withheld summary").first().click();
results.withheld.opened = await light.locator(".withheld .number").first().isVisible();
await light.screenshot({ path: `${shots}/stranger-open.png`, fullPage: true });
results.background = await light.evaluate(() => getComputedStyle(document.body).backgroundColor);
await light.context().close();

// No mouse at all, dark.
const dark = await open({ colorScheme: "dark", viewport: { width: 1280, height: 900 } });
async function tabTo(selector) {
  for (let presses = 1; presses <= 20; presses++) {
    await dark.keyboard.press("Tab");
    if (await dark.evaluate((wanted) => document.activeElement?.matches(wanted), selector)) return presses;
  }
  return 0;
}
results.keyboard = { upload: await tabTo("#upload") };
results.keyboard.name = await dark.evaluate(() => document.activeElement.innerText);
results.keyboard.outline = await dark.evaluate(() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" || style.boxShadow !== "none";
});
await dark.keyboard.press("Enter");
await dark.waitForSelector(".card", wait);
await dark.screenshot({ path: `${shots}/dark.png`, fullPage: true });
results.keyboard.clear = await tabTo("#clear");
await dark.keyboard.press("Enter");
await dark.waitForSelector(".welcome", wait);
results.keyboard.cards = await dark.locator(".card").count();
results.darkBackground = await dark.evaluate(() => getComputedStyle(document.body).backgroundColor);
await dark.context().close();

// A telephone.
const narrow = await open({ viewport: { width: 360, height: 740 } });
await upload(narrow, good);
results.overflow = await narrow.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
await narrow.screenshot({ path: `${shots}/narrow.png`, fullPage: true });
await narrow.context().close();

// A model that is not calibrated.
const plain = await open({}, uncalibrated);
await upload(plain, good);
results.uncalibrated = await texts(plain, ".state");
await browser.close();
console.log(JSON.stringify(results));
