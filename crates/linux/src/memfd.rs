//! Sealed files in memory, for bytes too long for a message.

use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::Mode,
    },
};
use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

/// Seals of a file that cannot be changed any more.
const SEALS: SealFlag = SealFlag::F_SEAL_WRITE
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_SEAL);

/// Makes a file with these bytes that cannot be changed, opened for reading only and at its start.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = sealed_for_us(name, bytes)?;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(link.as_str(), flags, Mode::empty())?)
}

/// As [`sealed`], for [`read`], which uses no position and no mode.
pub fn sealed_for_us(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(bytes)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

/// Returns all bytes of a sealed file, at most `max`; a file that may still change is refused.
pub fn read(file: OwnedFd, max: u64) -> io::Result<Vec<u8>> {
    let file = File::from(file);
    let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS)?);
    if !seals.contains(SEALS) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let len = file.metadata()?.len();
    if len > max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // The length is sealed, so one read returns all of the file.
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
