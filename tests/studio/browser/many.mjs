// Thousands of images: how many exist in the document, and how long frames take while scrolling.
// node many.mjs PLAYWRIGHT CHROMIUM ADDRESS SHOTS
const [, , playwright, chromiumPath, address, shots] = process.argv;
const { chromium } = (await import(playwright)).default;
const browser = await chromium.launch({
  executablePath: chromiumPath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
const wait = { timeout: 60000 };
await page.goto(`${address}/#setup`, wait);
await page.waitForSelector(".cell img", wait);
const results = await page.evaluate(async () => {
  const gallery = document.querySelector(".gallery");
  const frames = [];
  let most = 0;
  let last = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  for (let step = 0; step < 120; step++) {
    gallery.scrollTop += gallery.scrollHeight / 120;
    await frame();
    const now = performance.now();
    frames.push(now - last);
    last = now;
    most = Math.max(most, document.querySelectorAll(".cell").length);
  }
  frames.sort((a, b) => a - b);
  gallery.scrollTop = gallery.scrollHeight;
  return { most, median: frames[60], slow: frames[114], height: gallery.scrollHeight };
});
await page.waitForFunction(() => [...document.querySelectorAll(".cell img")].some((one) => one.complete && one.naturalWidth), null, wait);
await page.focus(".gallery");
await page.keyboard.press("End");
results.last = await page.locator(".cell[aria-selected=true]").getAttribute("aria-label");
await page.screenshot({ path: `${shots}/many.png` });
await browser.close();
console.log(JSON.stringify(results));
