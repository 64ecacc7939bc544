// The colours: as the system has them, light, or dark. Loaded before anything is painted, so that a dark page does not
// begin with a white flash.
const THEMES = ["system", "light", "dark"];
const KEPT = "dflash2.theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

function current() {
  const stored = localStorage.getItem(KEPT);
  return THEMES.includes(stored) ? stored : THEMES[0];
}

function dress() {
  const theme = current();
  document.documentElement.dataset.theme = theme === "dark" || (theme === "system" && DARK.matches) ? "dark" : "light";
}

/** Let a button go through the choices; it says which one is taken. */
export function chooseBy(button) {
  const tell = () => {
    button.title = `Colours: ${current()}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    localStorage.setItem(KEPT, THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length]);
    dress();
    tell();
  });
  tell();
}

DARK.addEventListener("change", dress);
addEventListener("storage", dress); // chosen in another tab
dress();
