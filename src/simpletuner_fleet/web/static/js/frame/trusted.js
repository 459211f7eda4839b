// Trusted Types: no text becomes markup, and no text the address of a script, without having been looked at here first. It runs before all
// other scripts. What the server sends holds no script and no handler but its own files; text that does was slipped in, and is refused whole.
(() => {
  if (!window.trustedTypes) return;
  const FORBIDDEN = "iframe, frame, object, embed, base, applet, portal, meta[http-equiv], link[rel=import]";
  const ADDRESSES = ["href", "src", "action", "formaction", "xlink:href", "data", "poster", "background"];
  const inert = trustedTypes.createPolicy("fleet-inert", { createHTML: (text) => text });

  const isOwnScript = (address) => {
    const url = new URL(address, document.baseURI);
    return url.origin === location.origin && url.pathname.startsWith("/assets/");
  };

  const isHarmless = (element) => {
    if (element.matches(FORBIDDEN)) return false;
    if (element.localName === "script") {
      const src = element.getAttribute("src");
      return src === null ? element.type === "application/json" : isOwnScript(src);
    }
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on") || name === "srcdoc" || name.startsWith("hx-on")) return false;
      if (ADDRESSES.includes(name) && /^[\s\u0000-\u0020]*(javascript|vbscript|data:text)/i.test(value)) return false;
    }
    return true;
  };

  const allHarmless = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (!isHarmless(element)) return false;
      if (element.localName === "template" && !allHarmless(element.content)) return false;
    }
    return true;
  };

  trustedTypes.createPolicy("default", {
    createHTML: (text) => {
      // As a page and as the content of an element: the two read some texts differently.
      const fragment = document.createElement("template");
      fragment.innerHTML = inert.createHTML(text);
      const page = new DOMParser().parseFromString(inert.createHTML(text), "text/html");
      return allHarmless(fragment.content) && allHarmless(page) ? text : null;
    },
    createScriptURL: (address) => (isOwnScript(address) ? address : null),
    createScript: () => null,
  });
})();
