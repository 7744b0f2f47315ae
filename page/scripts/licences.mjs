// Writes dist/licences.html: what the page is made of, and under which terms.
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';

const root = new URL('../', import.meta.url);
const lock = JSON.parse(readFileSync(new URL('package-lock.json', root), 'utf8'));
const names = Object.keys(lock.packages).filter((path) => path !== '' && !lock.packages[path].dev && existsSync(new URL(path, root)));
const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[c]);
const parts = names.map((path) => {
  const folder = new URL(`${path}/`, root);
  const { name, version, license } = JSON.parse(readFileSync(new URL('package.json', folder), 'utf8'));
  const file = readdirSync(folder).find((it) => /^licen[cs]e/i.test(it));
  const terms = file === undefined ? '' : readFileSync(new URL(file, folder), 'utf8');
  return `<h2>${name} ${version}</h2><p>${license}; its source is the package of that name and version at npmjs.com.</p><pre>${escaped(terms.trim())}</pre>`;
});
const head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Licences – Xylem</title>';
writeFileSync(new URL('dist/licences.html', root), `${head}<main><h1>Licences</h1>${parts.join('\n')}</main></html>\n`);
console.log(`licences: ${names.map((path) => path.replace('node_modules/', '')).join(', ')}`);
