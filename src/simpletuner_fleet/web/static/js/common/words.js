// The page's language for scripts: t("English %(name)s", {name}), tn("%(n)s job", "%(n)s jobs", n).
const held = JSON.parse(document.getElementById("words")?.textContent || "{}");
const messages = held.messages || {};
const plurals = held.plurals || {};
export const lang = document.documentElement.lang || "en";
const rule = new Intl.PluralRules(lang);
const one = lang === "pt-BR" ? (n) => n <= 1 : (n) => rule.select(n) === "one";

function filled(text, params) {
  return text.replace(/%\((\w+)\)s|%%/g, (whole, name) => (name ? String(params[name] ?? "") : "%"));
}

export function t(text, params = {}) {
  return filled(messages[text] || text, params);
}

export function tn(single, many, n, params = {}) {
  const forms = plurals[single] || [single, many];
  const form = forms.length === 1 || one(n) ? forms[0] : forms[1];
  return filled(form, { n: new Intl.NumberFormat(lang).format(n), ...params });
}
