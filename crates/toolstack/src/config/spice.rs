//! SPICE: a screen of an HVM guest beside VNC's, with more than a screen.

/// SPICE settings. Source: xl.cfg(5), `dm_spice_options` in xen `tools/libs/light/libxl_dm.c`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Spice {
    /// Address to listen at; `None`: all of them.
    pub host: Option<String>,
    /// At least one of the two ports is not 0.
    pub port: u16,
    pub tls_port: u16,
    /// `None`: anybody who reaches the port is let in.
    pub password: Option<String>,
    /// Whether the mouse goes through the guest's agent if there is one.
    pub agent_mouse: bool,
    /// Whether there is a channel to the guest's agent.
    pub agent: bool,
    /// Whether client and guest share a clipboard.
    pub clipboard: bool,
    /// USB devices of the client's that the guest may use at once.
    pub usb_redirections: u8,
    pub image_compression: Option<String>,
    pub streaming_video: Option<String>,
}

impl Spice {
    pub const USB_REDIRECTIONS_MAX: u8 = 4;
    /// QEMU's words.
    pub const COMPRESSIONS: [&'static str; 6] = ["auto_glz", "auto_lz", "quic", "glz", "lz", "off"];
    pub const STREAMINGS: [&'static str; 3] = ["off", "all", "filter"];
}
