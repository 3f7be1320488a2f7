// The page as an agent reads it: visible text in order, with a number before each element that can be acted on.
// Elements carry their number as an attribute until the next snapshot. Links stay in this tab.
() => {
  const MARK = "data-paragent";
  const BLOCK = /^(ADDRESS|ARTICLE|ASIDE|BLOCKQUOTE|DD|DIV|DL|DT|FIGCAPTION|FIGURE|FOOTER|FORM|H[1-6]|HEADER|HR|LI|MAIN|NAV|OL|P|PRE|SECTION|TABLE|TR|UL)$/;
  const SKIPPED = /^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|SVG|HEAD|IFRAME|OBJECT)$/i;
  const ACTIVE = "a[href],button,input:not([type=hidden]),textarea,select,summary,[role=button],[role=link],[role=checkbox],[onclick],[contenteditable=true]";
  const MOST = 200000;
  document.querySelectorAll(`[${MARK}]`).forEach((element) => element.removeAttribute(MARK));
  let text = "", number = 0;
  const line = () => { if (text && !text.endsWith("\n")) text += "\n"; };
  const words = (value) => (value || "").replace(/\s+/g, " ");
  const visible = (element) => {
    const style = getComputedStyle(element);
    return style.display !== "none" && style.visibility !== "hidden" && !element.hasAttribute("hidden");
  };
  const kind = (element) => {
    const tag = element.tagName.toLowerCase();
    if (tag === "a") return "link";
    if (tag === "input") return /^(button|submit|reset|image)$/.test(element.type) ? "button" : `input ${element.type}`;
    return tag === "textarea" || tag === "select" ? tag : element.getAttribute("role") || "button";
  };
  const label = (element) => {
    const tag = element.tagName, of = element.labels && element.labels[0];
    const name = words(element.getAttribute("aria-label") || element.getAttribute("placeholder") || (of && of.innerText) || element.getAttribute("name") || element.title);
    if (tag === "SELECT") return `${name} = "${words(element.selectedOptions[0] && element.selectedOptions[0].text)}" of ${[...element.options].map((o) => `"${words(o.text)}"`).join(", ")}`;
    if (/^(checkbox|radio)$/.test(element.type)) return `${name} ${element.checked ? "(checked)" : "(not checked)"}`;
    if (/^(button|submit|reset)$/.test(element.type) && tag === "INPUT") return words(element.value) || element.type;
    if (tag === "INPUT" || tag === "TEXTAREA") return `${name} = "${element.type === "password" ? "*".repeat(element.value.length) : words(element.value)}"`;
    const image = element.querySelector("img[alt]");
    return words(element.innerText).trim() || name || words(image && image.alt) || words(element.getAttribute("href"));
  };
  const walk = (node) => {
    if (text.length > MOST) return;
    if (node.nodeType === Node.TEXT_NODE) { const said = words(node.data); if (said.trim() || (said && text && !/\s$/.test(text))) text += said; return; }
    if (node.nodeType !== Node.ELEMENT_NODE || SKIPPED.test(node.tagName) || !visible(node)) return;
    if (node.matches(ACTIVE)) {
      number += 1;
      node.setAttribute(MARK, String(number));
      if (node.target && node.target !== "_self") node.target = "_self";
      text += `${/\s$/.test(text) || !text ? "" : " "}[${number} ${kind(node)}: ${label(node).trim()}]`;
      return;
    }
    if (node.tagName === "BR") { line(); return; }
    if (node.tagName === "IMG") { if (node.alt) text += `(image: ${words(node.alt)})`; return; }
    const block = BLOCK.test(node.tagName);
    if (block) line();
    if (/^H[1-6]$/.test(node.tagName)) text += "#".repeat(Number(node.tagName[1])) + " ";
    if (node.tagName === "LI") text += "- ";
    if (/^T[DH]$/.test(node.tagName) && text && !text.endsWith("\n")) text += " | ";
    (node.shadowRoot ? node.shadowRoot : node).childNodes.forEach(walk);
    if (block) line();
  };
  if (document.body) walk(document.body);
  return { url: location.href, title: document.title, text: text.replace(/[ \t]+\n/g, "\n").replace(/\n{3,}/g, "\n\n").trim(), elements: number };
}
