//! Reads TCP_INFO of a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Offset of `tcpi_segs_in` in struct tcp_info. The struct only grows at its end.
const SEGMENTS_IN: usize = 140;
const LENGTH: usize = SEGMENTS_IN + size_of::<u32>();

/// Number of segments received from the peer, also from one that refused the connection.
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
