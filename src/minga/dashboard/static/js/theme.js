// Sets the theme before anything is drawn: what the viewer chose here, or what the system says.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("minga-theme");
    } catch {
      return null; // storage is off
    }
  };
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  };
  set(kept() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => kept() ?? set(system.matches ? "dark" : "light"));
  window.changeTheme = () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("minga-theme", theme);
    } catch {
      // not kept, but changed
    }
    set(theme);
  };
})();
