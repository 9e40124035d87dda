//! Layers of a model, read behind the compute.

mod order;
mod placement;
mod schedule;
pub use order::Order;
pub use placement::{
    Budget, CannotPlace, Ceiling, LayerCost, Lift, PassBytes, Placement, Prediction, Raise, Rates,
    Tier, place,
};
