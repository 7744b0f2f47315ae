use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use peer_link::Identity;

use crate::hosts::Folder;

#[test]
fn a_key_is_made_once_and_is_only_the_owners() {
    let folder = Folder::new("once");
    let path = folder.0.join("peer").join("key");
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || Identity::load_or_make(&path).unwrap().fingerprint())
        })
        .collect();
    let made: Vec<_> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
    assert!(made.iter().all(|key| *key == made[0]), "{made:?}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    std::fs::remove_file(&path).unwrap();
    assert_ne!(Identity::load_or_make(&path).unwrap().fingerprint(), made[0]);
}

#[test]
fn a_key_that_others_may_read_is_not_used() {
    let folder = Folder::new("open");
    let path = folder.0.join("key");
    Identity::load_or_make(&path).unwrap();
    for mode in [0o640, 0o604, 0o660] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let why = Identity::load_or_make(&path).unwrap_err().to_string();
        assert!(
            why.contains("may be read by others") && why.contains(&format!("{mode:o}")),
            "{why}"
        );
        assert!(why.contains(&*path.to_string_lossy()), "{why}");
    }
}

#[test]
fn a_file_without_a_key_is_told_of_and_stays() {
    let folder = Folder::new("no-key");
    let path = folder.0.join("key");
    // The last one is of another kind: an EC key.
    let other = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg\n\
                 -----END PRIVATE KEY-----\n";
    for text in ["", "a key", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", other] {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let why = Identity::load_or_make(&path).unwrap_err().to_string();
        assert!(why.contains("has no Ed25519 key in PEM"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let why = Identity::load_or_make(&path).unwrap_err().to_string();
    assert!(why.starts_with("cannot read"), "{why}");
}

#[test]
fn openssl_reads_our_key_and_we_read_its() {
    let folder = Folder::new("openssl");
    let path = folder.0.join("key");
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).arg(&path).output().ok()?;
        Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    if openssl(&["genpkey", "-algorithm", "ed25519", "-out"]).is_none() {
        eprintln!("no openssl here");
        return;
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    Identity::load_or_make(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Identity::load_or_make(&path).unwrap();
    let (is_read, text) = openssl(&["pkey", "-noout", "-text", "-in"]).unwrap();
    assert!(is_read && text.starts_with("ED25519 Private-Key"), "{text}");
}
