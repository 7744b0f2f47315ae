//! Reads an image in a process that can do nothing else.
//!
//! An image comes from anywhere. The process that reads it is this program, executed again: it has the image as its standard
//! input and the disk as its standard output, and then gives up everything else (`image_parser::confine`): it is nobody,
//! opens no file, and its memory is limited. So an image that names other files, or breaks its reader, reaches one new
//! disk.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, ExitCode, Output, Stdio};

use disk_image::archive::{self, Header};
use disk_image::{Format, Image, ImageError, ReadAt};

use crate::session::{Failure, one_line};

/// The first argument of such a process.
const WORD: &str = "--read-image";
const MEASURE: &str = "measure";
const WRITE: &str = "write";
const CHECK_VM: &str = "check-vm";
/// Followed by the number of a disk.
const UNPACK_VM: &str = "unpack-vm-";
/// Clusters and the windows of decoders; the largest window is zstd's, of 128 MiB.
const MEMORY_MIB: u64 = 512;

/// What an image is, before its data is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Measured {
    pub(crate) format: String,
    pub(crate) bytes: u64,
}

struct Input {
    file: File,
    bytes: u64,
}

impl ReadAt for Input {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

/// If the arguments ask for it, this process reads an image, and that is its exit status.
pub(crate) fn become_reader(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = arguments.into_iter().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let mut word = || words.next().and_then(|word| word.into_string().ok());
    let (what, file_bytes, max) = (word(), word(), word());
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    let done = match (what.as_deref(), number(file_bytes), number(max)) {
        (Some(what), Some(bytes), Some(max)) => read(what, bytes, max),
        _ => Err(ImageError::Refused(format!("{WORD} is for xy's own use"))),
    };
    match done {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            let _unheard = writeln!(io::stderr(), "{error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn read(what: &str, bytes: u64, max: u64) -> Result<(), ImageError> {
    let input = Input { file: File::from(io::stdin().as_fd().try_clone_to_owned()?), bytes };
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    image_parser::confine(MEMORY_MIB)?;
    if what == CHECK_VM {
        let header = archive::read(stream(&input), &mut |_, _, _| Ok(()))?;
        let text = serde_json::to_vec(&header).map_err(io::Error::from)?;
        return Ok((&output).write_all(&text)?);
    }
    if let Some(wanted) = what.strip_prefix(UNPACK_VM).and_then(|number| number.parse::<u16>().ok())
    {
        let mut write = |disk: u16, at: u64, bytes: &[u8]| match disk == wanted {
            true => output.write_all_at(bytes, at),
            false => Ok(()),
        };
        return archive::read(stream(&input), &mut write).map(drop);
    }
    let image = Image::open(&input, max)?;
    if what == MEASURE {
        let bytes = image.disk_bytes()?;
        let format = match image.format() {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        };
        return Ok((&output).write_all(format!("{format} {bytes}\n").as_bytes())?);
    }
    image.read(&mut |at, bytes| output.write_all_at(bytes, at))
}

/// Reads the file from its start.
fn stream(input: &Input) -> impl io::Read {
    struct Stream<'a>(&'a Input, u64);
    impl io::Read for Stream<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.file.read_at(into, self.1)?;
            self.1 += count as u64;
            Ok(count)
        }
    }
    io::BufReader::with_capacity(256 << 10, Stream(input, 0))
}

/// Starts such a process.
fn run(what: &str, file: &File, output: Stdio, max: u64) -> io::Result<Output> {
    let bytes = file.metadata()?.len();
    Command::new("/proc/self/exe")
        .args([WORD, what, &bytes.to_string(), &max.to_string()])
        .env_clear()
        .stdin(file.try_clone()?)
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()?
        .wait_with_output()
}

fn outcome(name: &str, output: io::Result<Output>) -> Result<Vec<u8>, Failure> {
    let output = output.map_err(|error| {
        Failure::failed(format!("{name}: the process that reads it does not start: {error}"))
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(match one_line(&said).as_str() {
        "" => format!("{name}: the process that reads it ended with {}", output.status),
        why => format!("{name}: {why}"),
    }))
}

/// What the image in a file is.
pub(crate) fn measure(name: &str, file: &File, max: u64) -> Result<Measured, Failure> {
    let said = outcome(name, run(MEASURE, file, Stdio::piped(), max))?;
    let said = String::from_utf8_lossy(&said);
    let measured = said.trim().split_once(' ').and_then(|(format, bytes)| {
        let known = ["raw", "qcow2"].contains(&format);
        let bytes = bytes.parse().ok().filter(|&bytes| bytes <= max)?;
        known.then(|| Measured { format: format.to_owned(), bytes })
    });
    measured.ok_or_else(|| Failure::failed(format!("{name}: its reader says nonsense")))
}

/// What a file of `xy export` has, of which all was read.
pub(crate) fn check_vm(name: &str, file: &File) -> Result<Header, Failure> {
    let said = outcome(name, run(CHECK_VM, file, Stdio::piped(), 0))?;
    serde_json::from_slice(&said)
        .map_err(|_| Failure::failed(format!("{name}: its reader says nonsense")))
}

/// Writes one of its disks to a disk of zeros.
pub(crate) fn unpack_vm(
    name: &str,
    file: &File,
    number: usize,
    disk: &File,
) -> Result<(), Failure> {
    let what = format!("{UNPACK_VM}{number}");
    let output = disk.try_clone().map(Stdio::from).and_then(|disk| run(&what, file, disk, 0));
    outcome(name, output).map(drop)
}

/// Writes its data to a disk of zeros.
pub(crate) fn write(name: &str, file: &File, disk: &File, max: u64) -> Result<(), Failure> {
    let output = disk.try_clone().map(Stdio::from).and_then(|disk| run(WRITE, file, disk, max));
    outcome(name, output).map(drop)
}
