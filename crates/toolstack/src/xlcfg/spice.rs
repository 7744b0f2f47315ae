//! The keys of SPICE, of HVM domains.
//!
//! Source: xen `tools/xl/xl_parse.c`, the checks of `tools/libs/light/libxl_dm.c` and `libxl_create.c`.

use super::shown;
use super::vm::{Reader, Result};
use crate::config::{HvmSettings, Spice, UsbVersion};

impl Reader<'_> {
    pub(super) fn spice(&self) -> Result<Option<Spice>> {
        if !self.flag("spice", false)? {
            return Ok(None);
        }
        let port = |key: &str| -> Result<u16> {
            let port = self.number(key, 0..=i64::from(u16::MAX))?.unwrap_or_default();
            Ok(u16::try_from(port).unwrap_or_default())
        };
        let (plain, tls_port) = (port("spiceport")?, port("spicetls_port")?);
        if plain == 0 && tls_port == 0 {
            let problem = "needs a port, spiceport or spicetls_port";
            return Err(self.error("spice", self.place("spice"), problem));
        }
        let password = match self.flag("spicedisable_ticketing", false)? {
            true => None,
            false => match self.path("spicepasswd")? {
                Some(password) => Some(password.to_owned()),
                None => {
                    let problem = "needs a password, spicepasswd, or spicedisable_ticketing = 1";
                    return Err(self.error("spice", self.place("spice"), problem));
                }
            },
        };
        let most = i64::from(Spice::USB_REDIRECTIONS_MAX);
        let redirections = self.number("spiceusbredirection", 0..=most)?.unwrap_or_default();
        Ok(Some(Spice {
            host: self.plain("spicehost")?,
            port: plain,
            tls_port,
            password,
            agent_mouse: self.flag("spiceagent_mouse", true)?,
            agent: self.flag("spicevdagent", false)?,
            clipboard: self.flag("spice_clipboard_sharing", false)?,
            usb_redirections: u8::try_from(redirections).unwrap_or_default(),
            image_compression: self.spice_word("spice_image_compression", &Spice::COMPRESSIONS)?,
            streaming_video: self.spice_word("spice_streaming_video", &Spice::STREAMINGS)?,
        }))
    }

    fn spice_word(&self, key: &str, words: &[&'static str]) -> Result<Option<String>> {
        let word = self.path(key)?;
        match word {
            Some(word) if !words.contains(&word) => {
                let problem = format!("{}: expected one of {}", shown(word), words.join(", "));
                Err(self.error(key, self.place(key), problem))
            }
            word => Ok(word.map(str::to_owned)),
        }
    }

    /// What SPICE needs of other settings: devices of the client's need a controller of version 2 or 3, and QEMU is told one
    /// password.
    pub(super) fn with_redirections(&self, mut settings: HvmSettings) -> Result<HvmSettings> {
        let Some(spice) = &settings.spice else { return Ok(settings) };
        let vnc = settings.vnc.as_ref().and_then(|vnc| vnc.password.as_ref());
        if let (Some(password), Some(other)) = (&spice.password, vnc)
            && password != other
        {
            let problem = "not another one than vncpasswd: QEMU is told one for both";
            return Err(self.error("spicepasswd", self.place("spicepasswd"), problem));
        }
        if spice.usb_redirections > 0 {
            if settings.usb {
                let key = "spiceusbredirection";
                let problem =
                    "not together with usb or usbdevice, which have a controller of version 1";
                return Err(self.error(key, self.place(key), problem));
            }
            settings.usb_version = settings.usb_version.or(Some(UsbVersion::Two));
        }
        Ok(settings)
    }
}
