//! What `xy` and other clients say to `xylemd`, and its answers: one JSON object per line.
