import { defineConfig } from 'vite';
import solid from 'vite-plugin-solid';

/** Where `npm run dev` finds xylem-web. */
const server = process.env.XYLEM_WEB ?? 'http://127.0.0.1:8080';

export default defineConfig({
  base: './',
  plugins: [solid()],
  build: {
    target: 'es2022',
    // Nothing may come as a data: URL, which the page's policy refuses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '/v1': { target: server, ws: true } } },
});
