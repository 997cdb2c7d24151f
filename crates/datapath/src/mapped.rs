//! A BPF array map that is mapped into the memory of this process. Programs in the kernel see each store at once. A word
//! that they load as a whole is therefore stored as a whole, and everything that a row refers to is stored before the row
//! (release order).

use crate::{Context, Error, Result};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Rows of type `T`, a plain C struct from BTF.
pub struct MappedArray<T> {
    base: NonNull<u8>,
    bytes: usize,
    stride: usize,
    len: u32,
    _rows: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway; all access goes through volatile or atomic operations.
unsafe impl<T> Send for MappedArray<T> {}
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: Copy> MappedArray<T> {
    pub fn new(fd: impl AsFd, len: u32) -> Result<MappedArray<T>> {
        let stride = size_of::<T>().next_multiple_of(8);
        let bytes = (stride * len as usize).next_multiple_of(rustix::param::page_size());
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, rustix::mm::MapFlags::SHARED, fd.as_fd(), 0)
        }
        .context(|| format!("cannot map an array of {len} rows of {stride} bytes"))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Message("mmap returned a null address".into()))?;
        Ok(MappedArray { base, bytes, stride, len, _rows: PhantomData })
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of a row. The bounds check makes every use of the address sound.
    fn row(&self, index: u32) -> *mut T {
        assert!(index < self.len, "row {index} is out of bounds of an array of {} rows", self.len);
        // SAFETY: in bounds by the assertion, and the mapping lives as long as self.
        unsafe { self.base.as_ptr().add(index as usize * self.stride).cast() }
    }

    pub fn read(&self, index: u32) -> T {
        // SAFETY: `row` is in bounds and aligned (the stride is a multiple of 8, the base of a page).
        unsafe { self.row(index).read_volatile() }
    }

    /// Writes a whole row. Only for rows that no reader can reach yet.
    pub fn write(&self, index: u32, row: T) {
        // SAFETY: as in `read`.
        unsafe { self.row(index).write_volatile(row) }
        std::sync::atomic::fence(Ordering::Release);
    }

    fn field<F>(&self, index: u32, offset: usize) -> *mut F {
        assert!(offset + size_of::<F>() <= size_of::<T>() && offset.is_multiple_of(align_of::<F>()));
        // SAFETY: the field lies inside the row, which is in bounds.
        unsafe { self.row(index).cast::<u8>().add(offset).cast() }
    }

    /// Stores one field of a row that programs may be reading: as one word, ordered after all earlier stores.
    pub fn store<W: AtomicWord>(&self, index: u32, offset: usize, value: W) {
        // SAFETY: in bounds and aligned by `field`; the kernel never writes these words.
        unsafe { W::store(self.field(index, offset), value) }
    }

    pub fn load<W: AtomicWord>(&self, index: u32, offset: usize) -> W {
        // SAFETY: as in `store`.
        unsafe { W::load(self.field(index, offset)) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// An integer that is stored and loaded atomically.
pub trait AtomicWord: Copy {
    /// # Safety
    /// `at` is valid, aligned and only accessed atomically.
    unsafe fn store(at: *mut Self, value: Self);
    /// # Safety
    /// As for `store`.
    unsafe fn load(at: *mut Self) -> Self;
}

macro_rules! word {
    ($($int:ty => $atomic:ty),*) => {$(
        impl AtomicWord for $int {
            unsafe fn store(at: *mut $int, value: $int) {
                // SAFETY: promised by the caller.
                unsafe { <$atomic>::from_ptr(at) }.store(value, Ordering::Release);
            }
            unsafe fn load(at: *mut $int) -> $int {
                // SAFETY: promised by the caller.
                unsafe { <$atomic>::from_ptr(at) }.load(Ordering::Acquire)
            }
        }
    )*};
}

word!(u8 => AtomicU8, u16 => AtomicU16, u32 => AtomicU32, u64 => AtomicU64);

/// The bytes of a C struct, for a map system call.
pub fn bytes_of<T: Copy>(row: &T) -> &[u8] {
    // SAFETY: T is a C struct with explicit padding (asserted sizes in abi.h), so every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(row).cast(), size_of::<T>()) }
}

/// A C struct from the bytes of a map row; `None` if the size differs.
pub fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the size fits, and every bit pattern is a valid value of a C struct of integers.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
