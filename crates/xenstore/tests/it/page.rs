//! A ring page in memory that both ends hold.

use std::cell::RefCell;
use std::rc::Rc;

use xenstore::ring::RingPage;

#[derive(Clone)]
pub(crate) struct Page(pub(crate) Rc<RefCell<Vec<u8>>>);

impl Page {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(vec![0; 4096])))
    }
}

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        let page = self.0.borrow();
        u32::from_ne_bytes(page[offset..offset + 4].try_into().expect("four bytes"))
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.0.borrow_mut()[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}
