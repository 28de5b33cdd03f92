/* The start of the page: light or dark, then figures and table. */

/** Light or dark: what the system says, unless the reader chose; the choice is kept where the browser allows. */
function startTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  try {
    const kept = localStorage.getItem("qbayes-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* pages from disk may have no storage: the system's choice stands */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("qbayes-theme", root.dataset.theme);
    } catch { /* then the choice holds for this visit */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}

const DATA = JSON.parse(document.getElementById("data").textContent);
const GROUPS = DATA.groups;
startTheme();
startFigures(DATA.figures);
startTable(DATA.table);
