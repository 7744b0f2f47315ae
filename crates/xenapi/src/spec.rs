//! Devices as configuration files have them.

/// `key=value` pairs of a device's line; the target of a disk is its rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec<'a>(pub &'a str);

impl<'a> Spec<'a> {
    pub(crate) fn get(self, key: &str) -> Option<&'a str> {
        let mut rest = self.0;
        while !rest.is_empty() {
            if let Some(target) = rest.strip_prefix("target=") {
                return (key == "target").then_some(target);
            }
            let (part, next) = rest.split_once(',').unwrap_or((rest, ""));
            if let Some(value) = part.strip_prefix(key).and_then(|it| it.strip_prefix('=')) {
                return Some(value);
            }
            rest = next;
        }
        None
    }
}

/// The place of a disk by its name: `xvda` is the first.
pub(crate) fn disk_place(name: &str) -> Option<u32> {
    let letters = ["xvd", "hd", "sd"].into_iter().find_map(|it| name.strip_prefix(it))?;
    let is_word = !letters.is_empty() && letters.bytes().all(|it| it.is_ascii_lowercase());
    let digit = |it: u8| u32::from(it - b'a') + 1;
    let place = |letters: &str| {
        letters.bytes().try_fold(0_u32, |sum, it| sum.checked_mul(26)?.checked_add(digit(it)))
    };
    is_word.then(|| place(letters)).flatten()?.checked_sub(1)
}

/// The name of the disk in this place.
pub(crate) fn disk_name(place: u32) -> String {
    let mut letters = Vec::new();
    let mut rest = place + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b'a' + u8::try_from(rest % 26).unwrap_or_default()));
        rest /= 26;
    }
    letters.push('d');
    letters.push('v');
    letters.push('x');
    letters.into_iter().rev().collect()
}

/// The number in the store of the virtual disk in this place. Source: xen `docs/man/xen-vbd-interface.7.pandoc`.
pub(crate) fn disk_number(place: u32) -> u32 {
    const XVD_MAJOR: u32 = 202;
    if place < 16 { XVD_MAJOR << 8 | place << 4 } else { 1 << 28 | place << 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_rest() {
        let spec = Spec("format=raw,vdev=xvda,access=w,no-discard,target=/a,vdev=b,c");
        assert_eq!(spec.get("vdev"), Some("xvda"));
        assert_eq!(spec.get("target"), Some("/a,vdev=b,c"));
        assert_eq!(spec.get("devtype"), None);
        assert_eq!(Spec("").get("a"), None);
    }

    #[test]
    fn disks_are_counted_by_their_letters() {
        for (name, place, number) in [
            ("xvda", 0, 51712),
            ("xvdp", 15, 51952),
            ("xvdq", 16, 268_439_552),
            ("xvdaa", 26, 268_442_112),
        ] {
            assert_eq!(disk_place(name), Some(place));
            assert_eq!((disk_name(place).as_str(), disk_number(place)), (name, number));
        }
        for place in 0..1000 {
            assert_eq!(disk_place(&disk_name(place)), Some(place));
        }
        for bad in ["", "xvd", "xvdA", "xvda1", "vda", "xvdzzzzzzzzzzzz"] {
            assert_eq!(disk_place(bad), None, "{bad}");
        }
    }
}
