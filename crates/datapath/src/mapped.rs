//! An array map in our memory. Readers in the kernel see each store at once, so what they load as one word is stored as
//! one, and everything that a row points at is stored before it (release order).

use crate::{Context, Error, Result};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Rows of type `T`, a plain C struct from BTF.
pub struct Mapped<T> {
    base: NonNull<u8>,
    bytes: usize,
    stride: usize,
    len: u32,
    _rows: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway; all access goes through volatile or atomic operations.
unsafe impl<T> Send for Mapped<T> {}
unsafe impl<T> Sync for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    pub fn new(fd: impl AsFd, len: u32) -> Result<Mapped<T>> {
        let stride = size_of::<T>().next_multiple_of(8);
        let bytes = (stride * len as usize).next_multiple_of(rustix::param::page_size());
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, rustix::mm::MapFlags::SHARED, fd.as_fd(), 0)
        }
        .context(|| format!("cannot map an array of {len} rows of {stride} bytes"))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Said("mmap gave a null address".into()))?;
        Ok(Mapped { base, bytes, stride, len, _rows: PhantomData })
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of a row; the bound is what makes every use of it sound.
    fn at(&self, index: u32) -> *mut T {
        assert!(index < self.len, "row {index} of an array of {}", self.len);
        // SAFETY: in bounds by the assertion, and the mapping lives as long as self.
        unsafe { self.base.as_ptr().add(index as usize * self.stride).cast() }
    }

    pub fn read(&self, index: u32) -> T {
        // SAFETY: `at` is in bounds and aligned (the stride is a multiple of 8, the base of a page).
        unsafe { self.at(index).read_volatile() }
    }

    /// A whole row, for rows that no reader can reach yet.
    pub fn write(&self, index: u32, row: T) {
        // SAFETY: as in `read`.
        unsafe { self.at(index).write_volatile(row) }
        std::sync::atomic::fence(Ordering::Release);
    }

    fn field<F>(&self, index: u32, offset: usize) -> *mut F {
        assert!(offset + size_of::<F>() <= size_of::<T>() && offset.is_multiple_of(align_of::<F>()));
        // SAFETY: the field lies inside the row, which is in bounds.
        unsafe { self.at(index).cast::<u8>().add(offset).cast() }
    }

    /// One field of a row that readers may be looking at: stored as one word, after all stores before it.
    pub fn store<W: Word>(&self, index: u32, offset: usize, value: W) {
        // SAFETY: in bounds and aligned by `field`; the kernel never writes these words.
        unsafe { W::store(self.field(index, offset), value) }
    }

    pub fn load<W: Word>(&self, index: u32, offset: usize) -> W {
        // SAFETY: as in `store`.
        unsafe { W::load(self.field(index, offset)) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// An integer that the machine stores in one piece.
pub trait Word: Copy {
    /// # Safety
    /// `at` is valid, aligned and only accessed atomically.
    unsafe fn store(at: *mut Self, value: Self);
    /// # Safety
    /// As for `store`.
    unsafe fn load(at: *mut Self) -> Self;
}

macro_rules! word {
    ($($int:ty => $atomic:ty),*) => {$(
        impl Word for $int {
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

/// A C struct as the bytes that a map call takes.
pub fn bytes_of<T: Copy>(row: &T) -> &[u8] {
    // SAFETY: T is a C struct with explicit padding (asserted sizes in abi.h), so every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(row).cast(), size_of::<T>()) }
}

/// The other way; `None` if the size is not the struct's.
pub fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the size fits, and every bit pattern is a valid value of a C struct of integers.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
