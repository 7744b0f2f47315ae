// What is waited for comes at once on an idle machine; a busy one has this long.
export const PATIENCE_MS = 60_000;
