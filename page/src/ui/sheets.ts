// xterm writes style elements and style attributes, which the page's policy refuses. Here they become style sheets and
// properties set by script, which it allows.

const sheets = new Map<Element, CSSStyleSheet>();

function sheetElement(real: Document): HTMLElement {
  const element = real.createElementNS('http://www.w3.org/1999/xhtml', 'template') as HTMLElement;
  const sheet = new CSSStyleSheet();
  real.adoptedStyleSheets = [...real.adoptedStyleSheets, sheet];
  sheets.set(element, sheet);
  const text = { set: (css: string) => sheet.replaceSync(css), get: () => '', configurable: true };
  Object.defineProperty(element, 'textContent', text);
  Object.defineProperty(element, 'innerHTML', text);
  element.remove = () => {
    Element.prototype.remove.call(element);
    sheets.delete(element);
    real.adoptedStyleSheets = real.adoptedStyleSheets.filter((it) => it !== sheet);
  };
  return element;
}

function create(real: Document, name: string, options?: ElementCreationOptions): HTMLElement {
  if (name === 'style') return sheetElement(real);
  const element = Document.prototype.createElement.call(real, name, options);
  if (name === 'span') {
    element.setAttribute = (key: string, value: string) => {
      if (key === 'style') element.style.cssText = value;
      else Element.prototype.setAttribute.call(element, key, value);
    };
  }
  return element;
}

/** A document for xterm's `documentOverride`. */
export function tameDocument(real: Document): Document {
  return new Proxy(real, {
    get(target, key) {
      if (key === 'createElement') return (name: string, options?: ElementCreationOptions) => create(target, name, options);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
  });
}

/** Some parts of xterm use the window's document, while it is opened. */
export function whileTame(real: Document, run: () => void): void {
  const own = (name: string, options?: ElementCreationOptions): HTMLElement => create(real, name, options);
  Object.defineProperty(real, 'createElement', { value: own, configurable: true, writable: true });
  try {
    run();
  } finally {
    delete (real as { createElement?: unknown }).createElement;
  }
}

/** Removes the sheets of what is no longer in the document. */
export function dropSheets(): void {
  for (const element of [...sheets.keys()]) if (!element.isConnected) element.remove();
}
