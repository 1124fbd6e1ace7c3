// The page for newcomers: copies commands; as a file it puts its own address, and the link behind #, into them.
addEventListener("DOMContentLoaded", () => {
  const put = (name, text) => document.querySelectorAll(`.${name}`).forEach((place) => (place.textContent = text));
  const link = location.hash.slice(1);
  if (/^minga1[a-z2-7]{60,4000}$/.test(link)) put("link", link);
  const folder = location.protocol === "file:" ? "" : new URL(".", location.href).href;
  if (/^[A-Za-z0-9._~:/@+,=%-]+$/.test(folder)) put("base", folder); // nothing that a shell would read

  document.getElementById("theme").addEventListener("click", () => globalThis.changeTheme());
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const lines = button.previousElementSibling;
      getSelection().selectAllChildren(lines);
      let copied = false;
      try {
        await navigator.clipboard.writeText(lines.textContent);
        copied = true;
      } catch {
        copied = document.execCommand("copy"); // pages without TLS have no clipboard
      }
      button.textContent = copied ? "Copied" : "Copy it by hand";
      setTimeout(() => (button.textContent = "Copy"), 2500);
    });
  }
});
