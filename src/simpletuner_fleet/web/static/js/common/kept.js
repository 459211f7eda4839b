// Small choices of this browser; where storage is forbidden they last as long as the page.
const here = new Map();

export function get(name, otherwise) {
  try {
    return localStorage.getItem(`simpletuner.${name}`) ?? here.get(name) ?? otherwise;
  } catch {
    return here.get(name) ?? otherwise;
  }
}

export function put(name, value) {
  here.set(name, value);
  try {
    localStorage.setItem(`simpletuner.${name}`, value);
  } catch {
    return;
  }
}
