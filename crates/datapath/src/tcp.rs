//! What the kernel knows of one TCP socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Of struct tcp_info, which only ever grows: where `tcpi_segs_in` stands.
const SEGMENTS_IN: usize = 140;
const LENGTH: usize = SEGMENTS_IN + size_of::<u32>();

/// How many segments of the peer have come in, also of one that refused.
pub fn segments_in(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0u8; LENGTH];
    let mut length = LENGTH as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, and the kernel writes no more than `length` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < LENGTH {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let bytes = info[SEGMENTS_IN..].try_into().map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
    Ok(u32::from_ne_bytes(bytes))
}
