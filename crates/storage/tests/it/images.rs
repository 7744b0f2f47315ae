//! Images on every kind of SR that makes VDIs.

use storage::{Access, Image, StorageError};

use crate::suite::{KINDS, Lab, SMALL, vdi_name};

fn image() -> Image {
    Image {
        name: "debian".to_owned(),
        sr: "s".to_owned(),
        bytes: SMALL,
        format: "qcow2".to_owned(),
        origin: "/srv/debian.qcow2".to_owned(),
        checksum: "sha256:00".to_owned(),
    }
}

#[test]
fn an_image_is_filled_cloned_and_removed() {
    for kind in KINDS {
        let mut lab = Lab::new(kind);
        let filled = vdi_name("image-debian");
        lab.srs().create_vdi(&filled, SMALL).unwrap();
        assert_eq!(lab.srs().images(), Ok(Vec::new()), "{kind}");
        lab.write("image-debian", 7);
        lab.srs().add_image(&image()).unwrap();
        assert_eq!(lab.srs().images(), Ok(vec![image()]), "{kind}");
        let again = lab.srs().add_image(&image()).unwrap_err().to_string();
        assert_eq!(again, "debian: there is an image of this name, in s", "{kind}");

        lab.srs().clone_vdi(&filled, "web1").unwrap();
        lab.write("web1", 8);
        assert_eq!((lab.read("image-debian"), lab.read("web1")), (7, 8), "{kind}");
        if kind != storage::Kind::Lvm {
            let error = lab.srs().attach(&filled, "vm", Access::ReadWrite).unwrap_err();
            assert!(error.to_string().contains("cannot be written to"), "{kind}: {error}");
        }
        let removed = lab.srs().remove_image("debian");
        if kind == storage::Kind::Qcow2 {
            let StorageError::InUse(why) = removed.unwrap_err() else { panic!("{kind}") };
            assert!(why.ends_with("destroy web1 first"), "{why}");
            lab.srs().destroy_vdi(&vdi_name("web1")).unwrap();
            lab.srs().remove_image("debian").unwrap();
        } else {
            removed.unwrap();
            assert_eq!(lab.read("web1"), 8, "{kind}");
        }
        assert_eq!(lab.srs().images(), Ok(Vec::new()), "{kind}");
        assert!(!lab.names().contains(&"image-debian".to_owned()), "{kind}");
    }
}

/// Removal, killed at each moment: the image is there, or can be removed again, or is gone.
#[test]
fn an_interrupted_removal_can_be_repeated() {
    for kind in KINDS {
        for moment in 1.. {
            let mut lab = Lab::new(kind);
            lab.srs().create_vdi(&vdi_name("image-debian"), SMALL).unwrap();
            lab.srs().add_image(&image()).unwrap();
            lab.os.kill_daemon_after(moment);
            let finished = lab.srs().remove_image("debian").is_ok();
            lab.restart_daemon();
            if !lab.srs().images().unwrap().is_empty() {
                lab.srs().remove_image("debian").unwrap();
            }
            assert_eq!(lab.names(), Vec::<String>::new(), "{kind}, {moment}");
            if finished {
                break;
            }
        }
    }
}

#[test]
fn names_that_are_none_are_refused() {
    let named = |name: &str| Image { name: name.to_owned(), ..image() }.vdi();
    assert_eq!(named("debian-12").unwrap().to_string(), "s:image-debian-12");
    for bad in ["", "../etc", ".x", "a b", &"x".repeat(35)] {
        let error = named(bad).unwrap_err().to_string();
        assert!(error.contains("cannot name an image: expected up to 34"), "{error}");
    }
}
