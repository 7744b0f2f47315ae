// xterm writes style elements and style attributes, which the page's policy refuses. While a terminal is open they become
// style sheets and properties set by script, which it allows.

const sheets = new Set<CSSStyleSheet>();

function drop(sheet: CSSStyleSheet): void {
  sheets.delete(sheet);
  document.adoptedStyleSheets = document.adoptedStyleSheets.filter((it) => it !== sheet);
}

/** Stands for a style element: its text becomes a sheet. */
function sheetElement(): HTMLElement {
  const element = Document.prototype.createElement.call(document, 'template');
  const sheet = new CSSStyleSheet();
  sheets.add(sheet);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, 'textContent', { set: (css: string) => sheet.replaceSync(css), get: () => '' });
  element.remove = () => {
    Element.prototype.remove.call(element);
    drop(sheet);
  };
  return element;
}

function create(name: string, options?: ElementCreationOptions): HTMLElement {
  if (name === 'style') return sheetElement();
  const element = Document.prototype.createElement.call(document, name, options);
  if (name === 'span') {
    element.setAttribute = (key: string, value: string) => {
      if (key === 'style') element.style.cssText = value;
      else Element.prototype.setAttribute.call(element, key, value);
    };
  }
  return element;
}

let users = 0;

/** Until what it returns is called. */
export function tameStyles(): () => void {
  users += 1;
  Object.defineProperty(document, 'createElement', { value: create, configurable: true, writable: true });
  return () => {
    users -= 1;
    if (users > 0) return;
    delete (document as { createElement?: unknown }).createElement;
    for (const sheet of [...sheets]) drop(sheet);
  };
}
