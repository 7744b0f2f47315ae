//! A flame graph as an SVG: a box for each function, as wide as the share of the time spent in it, on top of
//! its caller. Pointing at a box shows its name and share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Width of the picture and height of a row, in pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
/// Boxes narrower than that are not drawn.
const NARROWEST: f64 = 0.3;
/// Width of a letter.
const LETTER: f64 = 6.6;
/// Room for the title.
const HEAD: f64 = 46.0;

#[derive(Debug, Default)]
struct Frame {
    weight: f64,
    children: BTreeMap<String, Frame>,
}

impl Frame {
    fn depth(&self) -> u32 {
        1 + self.children.values().map(Self::depth).max().unwrap_or_default()
    }
}

/// Draws "frame;frame WEIGHT" lines. `title` says what the weight is. Lines that are none are left out.
pub(crate) fn draw(title: &str, lines: &str) -> String {
    let mut root = Frame::default();
    for line in lines.lines() {
        let Some((stack, weight)) = line.rsplit_once(' ') else { continue };
        let Ok(weight) = weight.parse::<f64>() else { continue };
        root.weight += weight;
        let mut frame = &mut root;
        for name in stack.split(';') {
            frame = frame.children.entry(name.to_owned()).or_default();
            frame.weight += weight;
        }
    }
    let height = HEAD + f64::from(root.depth()) * ROW + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf5\"/>\n\
         <text x=\"{}\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">{}</text>\n",
        WIDTH / 2.0,
        escaped(title)
    );
    let canvas = Canvas { height, total: root.weight.max(f64::MIN_POSITIVE) };
    canvas.put(&mut out, "all", &root, 0.0, 0.0);
    out.push_str("</svg>\n");
    out
}

struct Canvas {
    height: f64,
    total: f64,
}

impl Canvas {
    /// Draws a box and all that stands on it.
    fn put(&self, out: &mut String, name: &str, frame: &Frame, left: f64, level: f64) {
        let width = frame.weight / self.total * WIDTH;
        if width < NARROWEST {
            return;
        }
        let top = self.height - 10.0 - (level + 1.0) * ROW;
        let name = escaped(name);
        let share = frame.weight / self.total * 100.0;
        // The same name has the same colour everywhere.
        let hue = name.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte)) % 55;
        let _ = write!(
            out,
            "<g><title>{name}: {share:.2} %</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
             height=\"{}\" rx=\"1\" fill=\"hsl({hue},80%,68%)\"/>",
            (width - 0.5).max(0.2),
            ROW - 1.0
        );
        let fitting = (1_u32..).take_while(|n| f64::from(*n) * LETTER + 4.0 < width).count();
        if fitting >= 3 {
            let shown: String = name.chars().take(fitting).collect();
            // Half of an escaped letter is none.
            let shown = if shown.len() < name.len() && shown.contains('&') { "" } else { &shown };
            let (x, y) = (left + 3.0, top + 12.0);
            let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{shown}</text>");
        }
        out.push_str("</g>\n");
        let mut left = left;
        for (name, child) in &frame.children {
            self.put(out, name, child, left, level + 1.0);
            left += child.weight / self.total * WIDTH;
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_as_wide_as_their_share() {
        let svg = draw("a & b", "one;two 30\none;<three> 30\nfour 60\nnonsense\n");
        for part in [
            "a &amp; b",
            "<title>all: 100.00 %</title>",
            "<title>one: 50.00 %</title>",
            "<title>two: 25.00 %</title>",
            "<title>&lt;three&gt;: 25.00 %</title>",
            "<title>four: 50.00 %</title>",
            "width=\"599.5\"",
            "width=\"299.5\"",
        ] {
            assert!(svg.contains(part), "{part} is missing in\n{svg}");
        }
        assert_eq!(svg.matches("<g>").count(), 5);
        assert!(draw("nothing", "").ends_with("</svg>\n"));
    }
}
