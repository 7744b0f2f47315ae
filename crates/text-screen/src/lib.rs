//! A text console as a screen in RFB, for viewers that know nothing else: Xen Orchestra, XO Lite, any VNC viewer.
//!
//! [`TextScreen`] stands between a viewer and a guest. It is given what either says, and returns what each is to be told;
//! it keeps the screen's text and nothing of what has been sent. Text is drawn with a font of 8 by 8 dots, each line of
//! which is drawn twice.

mod draw;
mod keys;
mod rfb;
mod terminal;

use keys::Keys;
use rfb::{Event, Viewer};
use terminal::Terminal;

pub use rfb::Wrong;

/// What follows for both sides.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Said {
    pub to_viewer: Vec<u8>,
    pub to_guest: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct TextScreen {
    terminal: Terminal,
    viewer: Viewer,
    keys: Keys,
}

impl TextScreen {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a server says before its viewer says anything.
    #[must_use]
    pub fn greeting(&self) -> &'static [u8] {
        rfb::GREETING
    }

    /// # Errors
    /// This is not RFB. The viewer is to be hung up on.
    pub fn viewer_says(&mut self, bytes: &[u8]) -> Result<Said, Wrong> {
        let mut said = Said::default();
        self.viewer.hear(bytes);
        while let Some(event) = self.viewer.next(&mut said.to_viewer)? {
            match event {
                Event::Key { is_down, symbol } => {
                    self.keys.key(is_down, symbol, self.terminal.modes(), &mut said.to_guest);
                }
                Event::Wants { all: true } => self.terminal.touch_all(),
                Event::Wants { all: false } | Event::Nothing => {}
            }
        }
        self.show(&mut said);
        Ok(said)
    }

    /// A guest may say anything.
    pub fn guest_says(&mut self, bytes: &[u8]) -> Said {
        let mut said = Said::default();
        for byte in bytes {
            self.terminal.hear(*byte, &mut said.to_guest);
        }
        self.show(&mut said);
        said
    }

    /// What has changed, if the viewer waits for it.
    fn show(&mut self, said: &mut Said) {
        if self.viewer.waits() {
            let changed = self.terminal.changed();
            if !changed.is_empty() {
                self.viewer.update(&self.terminal, &changed, &mut said.to_viewer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
