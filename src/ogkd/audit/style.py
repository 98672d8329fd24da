"""The look of the page: light and dark, narrow and wide."""

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --text: #1b1f24; --quiet: #59636e; --line: #d5dae0; --card: #f5f7f9;
  --error: #b3261e; --warning: #8a5a00; --note: #2458a6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171a; --text: #e6e9ed; --quiet: #a0a9b3; --line: #39414a; --card: #1e2328;
    --error: #ff8a80; --warning: #f0b94d; --note: #8ab8ff;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem; }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.75rem; }
code { font-size: 0.85em; overflow-wrap: anywhere; }
small, footer { color: var(--quiet); overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; font-size: 0.9rem; }
.summary { display: flex; flex-wrap: wrap; gap: 0.5rem; padding: 0; margin: 0; list-style: none; }
.summary li { flex: 1 1 7rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 0.5rem 0.75rem; color: var(--quiet); }
.summary b { display: block; font-size: 1.2rem; color: var(--text); }
article { border: 1px solid var(--line); border-left: 5px solid var(--tone); border-radius: 6px;
  padding: 0.6rem 0.9rem; margin: 0.6rem 0; }
article p { margin: 0.1rem 0; }
article p + p { color: var(--quiet); }
article strong { color: var(--tone); margin-right: 0.35rem; }
article ul { padding-left: 1.2rem; margin: 0.4rem 0; }
.error { --tone: var(--error); }
.warning { --tone: var(--warning); }
.note { --tone: var(--note); }
summary { cursor: pointer; color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid var(--line); }
td, th[scope="col"]:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; }
.gallery { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
.card { border: 1px solid var(--line); border-radius: 6px; background: var(--card);
  padding: 0.7rem; }
.card.apart { border-color: var(--error); }
.card p { margin: 0.4rem 0 0; font-size: 0.9rem; color: var(--quiet); }
.pictures { display: flex; flex-wrap: wrap; gap: 0.6rem; }
figure { margin: 0; flex: 1 1 9rem; max-width: 12rem; min-width: 0; }
figure img { display: block; width: 100%; max-height: 12rem; object-fit: contain;
  background: #000; border-radius: 4px; }
figcaption { font-size: 0.8rem; line-height: 1.35; margin-top: 0.25rem; overflow-wrap: anywhere; }
"""
