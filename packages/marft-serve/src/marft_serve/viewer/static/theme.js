// Light or dark: as the system has it, until somebody chooses. The choice stays in this browser.

import { replace, s } from "./dom.js";

const SUN = "M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10ZM12 1v3M12 20v3M1 12h3M20 12h3M4.2 4.2l2.1 2.1M17.7 17.7l2.1 2.1M4.2 19.8l2.1-2.1M17.7 6.3l2.1-2.1";
const MOON = "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z";

const dark = () => matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem("marft-theme");
  } catch {
    return null; // storage is forbidden: the choice then lasts as long as the page
  }
}

function show(button) {
  const now = document.documentElement.dataset.theme || (dark().matches ? "dark" : "light");
  button.setAttribute("aria-label", now === "dark" ? "Switch to light" : "Switch to dark");
  replace(button, s("svg", { viewBox: "0 0 24 24", class: "glyph", "aria-hidden": "true" }, s("path", { d: now === "dark" ? SUN : MOON })));
  return now;
}

export function startTheme(button) {
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  show(button);
  dark().addEventListener("change", () => show(button));
  button.addEventListener("click", () => {
    const next = show(button) === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("marft-theme", next);
    } catch {
      // see above
    }
    show(button);
  });
}
