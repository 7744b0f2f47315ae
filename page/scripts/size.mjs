// Checks the size of what a browser reads first: the page, its scripts and its style sheets.
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

const most = 150_000;
const dist = new URL('../dist/', import.meta.url);
const html = readFileSync(new URL('index.html', dist), 'utf8');
const files = ['index.html', ...[...html.matchAll(/(?:src|href)="\.\/([^"]+)"/g)].map((match) => match[1])];
let sum = 0;
for (const file of files) sum += gzipSync(readFileSync(new URL(file, dist)), { level: 9 }).length;
console.log(`first load: ${sum} bytes gzip of at most ${most} (${files.join(', ')})`);
if (sum > most) process.exit(1);
