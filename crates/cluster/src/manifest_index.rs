//! Decides which definition of an object is in effect. If several places define the same object, the first one in the
//! order of file names and places is in effect, and the others are refused. The index is plain synchronous state: it
//! receives the contents of files and returns the changes.

use crate::manifest_object::{Content, ManifestObject, Place};
use crate::mirrored_endpoints::{MirroredEndpoints, SplitChanges};
use crate::orphans::OrphanIndex;
use crate::source_key::SourceKey;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::refusal::{Refusal, RefusalReason};
use beeline_model::{Name, ServiceName};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

#[derive(Clone)]
struct Definition {
    file: Name,
    place: Place,
    /// Of the content, which is not kept.
    fingerprint: u64,
    is_selectorless: bool,
    /// The Service of slices and Endpoints.
    owner: Option<ServiceName>,
}

impl Definition {
    fn rank(&self) -> (&Name, Place) {
        (&self.file, self.place)
    }
}

/// The definitions that were in effect before an update.
type PreviousDefinitions = HashMap<SourceKey, Definition>;

#[derive(Default)]
pub(crate) struct ManifestIndex {
    /// The definition that is in effect.
    effective: HashMap<SourceKey, Definition>,
    /// The other definitions of the same object in their order. Rare.
    duplicates: BTreeMap<SourceKey, Vec<Definition>>,
    mirrors: MirroredEndpoints,
    orphans: OrphanIndex,
}

/// The current content of one file. A removed file has no objects.
pub(crate) struct FileUpdate {
    pub(crate) file: Name,
    /// The objects that the file defined until now.
    pub(crate) previous: Box<[SourceKey]>,
    pub(crate) objects: Vec<ManifestObject>,
    /// Objects that the file defined until now stay in effect, even if the file does not contain them any more.
    pub(crate) keep_missing: bool,
}

/// The objects that a file defines after an update.
pub(crate) struct FileKeys {
    pub(crate) file: Name,
    pub(crate) keys: Box<[SourceKey]>,
    /// The number of objects that are kept although the file does not contain them any more.
    pub(crate) kept: usize,
}

#[derive(Default)]
struct UpdateResult {
    changes: SplitChanges,
    /// Services whose mirrored Endpoints must be published again.
    mirrored: BTreeSet<ServiceName>,
    removed_services: HashSet<ServiceName>,
}

impl ManifestIndex {
    pub(crate) fn len(&self) -> usize {
        self.effective.len()
    }

    /// The files that define one of these objects too. If one definition gives way, another one takes effect, and its
    /// file must be read again, because only the fingerprint of its content is known.
    pub(crate) fn files_with_same_objects<'a>(&'a self, keys: &'a [SourceKey]) -> impl Iterator<Item = &'a Name> {
        let keys = if self.duplicates.is_empty() { &[] } else { keys };
        let contested = keys.iter().filter_map(|key| Some((key, self.duplicates.get(key)?)));
        contested.flat_map(|(key, duplicates)| {
            duplicates.iter().chain(self.effective.get(key)).map(|definition| &definition.file)
        })
    }

    /// Applies the contents of files, and returns the changes: upserts first, deletions last. The updates must include
    /// all files of `files_with_same_objects`.
    pub(crate) fn apply(&mut self, updates: Vec<FileUpdate>) -> (Vec<Change>, Vec<FileKeys>) {
        let mut before = PreviousDefinitions::new();
        let keys = updates.iter().map(|update| self.withdraw(update, &mut before)).collect();
        for update in &updates {
            update.objects.iter().for_each(|object| self.define(&update.file, object, &mut before));
        }
        let mut result = UpdateResult::default();
        for update in updates {
            update.objects.into_iter().for_each(|object| self.compare(&update.file, object, &before, &mut result));
        }
        self.delete_undefined(&before, &mut result);
        let UpdateResult { mut changes, mirrored, .. } = result;
        for service in mirrored {
            let definition = self.effective.get(&SourceKey::service(&service));
            let applies = definition.is_some_and(|definition| definition.is_selectorless);
            self.mirrors.publish(&service, applies, &mut changes);
        }
        (changes.into_changes(), keys)
    }

    fn withdraw(&mut self, update: &FileUpdate, before: &mut PreviousDefinitions) -> FileKeys {
        let defined: HashSet<&SourceKey> = update.objects.iter().map(|object| &object.key).collect();
        let mut keys: Vec<SourceKey> = defined.iter().copied().cloned().collect();
        for key in &update.previous {
            let is_effective = self.effective.get(key).is_some_and(|definition| definition.file == update.file);
            if is_effective && update.keep_missing && !defined.contains(key) {
                keys.push(key.clone());
            } else if is_effective && let Some(definition) = self.effective.remove(key) {
                before.insert(key.clone(), definition);
            }
            self.remove_duplicates(key, &update.file);
        }
        let kept = keys.len() - defined.len();
        FileKeys { file: update.file.clone(), keys: keys.into(), kept }
    }

    fn remove_duplicates(&mut self, key: &SourceKey, file: &Name) {
        if let Some(duplicates) = self.duplicates.get_mut(key) {
            duplicates.retain(|duplicate| duplicate.file != *file);
            if duplicates.is_empty() {
                self.duplicates.remove(key);
            }
        }
    }

    fn define(&mut self, file: &Name, object: &ManifestObject, before: &mut PreviousDefinitions) {
        let key = &object.key;
        let definition = Definition {
            file: file.clone(),
            place: object.place,
            fingerprint: object.content.fingerprint(),
            is_selectorless: object.is_selectorless,
            owner: object.content.owner().cloned(),
        };
        let duplicate = match self.effective.get_mut(key) {
            None => {
                self.effective.insert(key.clone(), definition);
                return;
            }
            Some(first) if definition.rank() < first.rank() => {
                let displaced = std::mem::replace(first, definition);
                before.entry(key.clone()).or_insert_with(|| displaced.clone());
                displaced
            }
            Some(_) => definition,
        };
        let duplicates = self.duplicates.entry(key.clone()).or_default();
        let position = duplicates.partition_point(|other| other.rank() < duplicate.rank());
        duplicates.insert(position, duplicate);
    }

    /// Adds a change if this object is in effect and differs from the one that was in effect before.
    fn compare(
        &mut self,
        file: &Name,
        object: ManifestObject,
        before: &PreviousDefinitions,
        result: &mut UpdateResult,
    ) {
        let ManifestObject { key, place, content, .. } = object;
        let Some(now) = self.effective.get(&key).filter(|now| now.rank() == (file, place)) else { return };
        let (now, previous) = (now.clone(), before.get(&key));
        if let SourceKey::Object(ObjectKey::Service(name)) = &key {
            self.orphans.remove_owner(name);
            if previous.is_none_or(|previous| previous.is_selectorless != now.is_selectorless) {
                result.mirrored.insert(name.clone());
            }
        }
        if previous.map_or(0, |previous| previous.fingerprint) == now.fingerprint {
            return;
        }
        self.orphans.remove(&key, previous.and_then(|previous| previous.owner.as_ref()));
        if let Some(owner) = now.owner.filter(|owner| !self.effective.contains_key(&SourceKey::service(owner))) {
            self.orphans.insert(&key, &owner);
        }
        match (content, &key) {
            (Content::Endpoints(slices), SourceKey::Endpoints(name)) => {
                self.mirrors.set(name, slices);
                result.mirrored.insert(name.clone());
            }
            (Content::Object(Some(object)), _) => result.changes.upserts.push(Change::Upsert(object)),
            (Content::Object(None) | Content::Endpoints(_), _) => result.changes.deletions.extend(key.deletion()),
        }
    }

    /// Deletes the objects that were in effect before and have no definition now.
    fn delete_undefined(&mut self, before: &PreviousDefinitions, result: &mut UpdateResult) {
        for (key, previous) in before.iter().filter(|(key, _)| !self.effective.contains_key(key)) {
            if previous.fingerprint != 0 {
                result.changes.deletions.extend(key.deletion());
            }
            self.orphans.remove(key, previous.owner.as_ref());
            match key {
                SourceKey::Object(ObjectKey::Service(name)) => {
                    result.mirrored.insert(name.clone());
                    result.removed_services.insert(name.clone());
                }
                SourceKey::Endpoints(name) => {
                    self.mirrors.set(name, Vec::new());
                    result.mirrored.insert(name.clone());
                }
                SourceKey::Object(_) | SourceKey::NodeSlice(_) => {}
            }
        }
        self.insert_orphans(&result.removed_services);
    }

    /// Records the slices of removed Services as orphans. Services are rarely removed, so there is no index from
    /// Services to slices. A few Services are compared one by one, which costs a tenth of hashing every owner.
    fn insert_orphans(&mut self, removed: &HashSet<ServiceName>) {
        if removed.is_empty() {
            return;
        }
        let few = removed.len() <= 8;
        let is_removed = |owner: &&ServiceName| {
            if few { removed.iter().any(|name| name == *owner) } else { removed.contains(*owner) }
        };
        for (key, definition) in &self.effective {
            if let Some(owner) = definition.owner.as_ref().filter(is_removed) {
                self.orphans.insert(key, owner);
            }
        }
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        let duplicates = self.duplicates.iter().flat_map(|(key, duplicates)| {
            let effective = self.effective.get(key);
            duplicates.iter().filter_map(move |duplicate| Some(refuse_duplicate(key, effective?, duplicate)))
        });
        duplicates.chain(self.orphans.refusals()).collect()
    }
}

fn refuse_duplicate(key: &SourceKey, effective: &Definition, duplicate: &Definition) -> Refusal {
    let message = format!(
        "{} {} defines it again; {} {} is in effect: remove one of them",
        duplicate.file, duplicate.place, effective.file, effective.place
    );
    Refusal::new(key.object_ref(), RefusalReason::Duplicate, message)
}
